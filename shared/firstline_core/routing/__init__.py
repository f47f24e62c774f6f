"""Routing: pure functions over evidence, without I/O, so that device, simulator and replay run the same code.

    policy          scores of the edge answer, and the policies that decide by them which tier answers

Certification: bounds on the risk of edge answers.
    certificate     the certificate of an edge variant
    certification   the loosest threshold with a risk of at most epsilon, with confidence 1 - delta
    contracts       contracts on all answers, on groups, and on rows sampled with different probabilities
    binomial        exact tails, for losses of 0 and 1
    bounds          p-values for losses anywhere in [0, 1], and the bounds that they prove; Clopper-Pearson bounds

Monitoring: does the contract still hold in the field?
    sampling        the probability with which the next edge answer is audited
    audit           the sequential test of the contract, valid after every audit
    tightening      the threshold after an alarm
    drift           changes of the inputs, detected without the full model

Deadlines: the latency of links.
    timing          the latency of a link, by size of the payload
    quantiles       quantiles of a stream with decaying weights
    token_bucket    a token bucket

Budgets: the cost of an escalation, and whether it is worth it.
    account         all budgets together: tariff, cost, price, decision
    budget          one budget: prices that make it last to the end of its hour or day
"""
