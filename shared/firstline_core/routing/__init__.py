"""Who answers: pure functions over evidence, without I/O, so that device, simulator and replay run the same code.

Policies: what becomes of a row.
    policy          before the edge model ran and after; the threshold in use; what a certificate covers
    policies        those to choose from: Firstline's own two, baselines, and what peers do

Scores: how sure a model is of its answer.
    confidence      the simple ones, and AUROC, which tells how well a score ranks errors
    learned         a logistic score and the learned value of asking the full model, applied
    detection       boxes: scores and losses of one image

Proof: what may be promised of kept answers, before any is given.
    certificate     the record that an edge variant carries
    certification   the loosest threshold that keeps the promise "at most epsilon, with confidence 1 - delta"
    contracts       promises on the whole stream of answers, and on groups of them
    weighted        certifying on rows that were drawn with different probabilities
    binomial        exact tails and Clopper-Pearson bounds, for losses of 0 and 1
    bounds          p-values for losses anywhere in [0, 1]
    starts          where testing begins
    fallback        many hypotheses in a fixed order, at one delta for all of them

In the field: does the promise still hold?
    sampling        with which probability the next kept answer is audited
    audit           the test that may be looked at after every audit, for ever
    tightening      after an alarm: the score from which answers are still good enough
    drift           has what comes in changed? Needs no full model

On time: what the link allows.
    timing          how long a link takes, by the size of what is sent
    quantiles       of a stream that forgets
    hedging         whether to ask the full model before the small one has answered
    token_bucket    what may be done now and then

On budget: what an escalation costs, and whether it is worth that.
    account         all budgets together: cost, price, verdict
    budget          one budget: prices that make it last to the end of its hour or day
    demand          how much is still to come in this hour or day
    tariff          what traffic and runs cost, as the owner states it
    conditions      battery, heat and a metered link, as factors on prices
"""
