"""How a model comes to a fleet: in stages, each of which is judged before the next one begins.

Rules, pure functions without I/O
    subject         a bundle or a configuration, as the fleet's documents speak of it
    definition      what a rollout is to do, and how it and its devices stand
    states          of a rollout, and what a person may do in each
    stages          which devices a stage takes, and which it leaves alone
    standing        how one device stands, from what it says
    measuring       what devices did before and since, as it is compared
    judgement/      whether devices with the new model do worse than those without
    changes         what a step sees and changes, and the ways in which a stage ends
    offering        whom a stage takes, when they are told, and how they are told to go back
    looking         both groups observed, looked at and judged
    joining         who joins the fleet when a rollout is over
    step            from how a rollout stands, its devices and the time to what changes
    commanding      what a person's command changes
    plan            what a rollout would do

What is kept
    tables          where
    records         rollouts, their devices, the looks at them, and who drives them
    mirror          what a rollout read before, so that a step reads what has changed since
    view            the fleet in the store as a step sees it
    bundle_use      which rollouts still need a signed version
    applying        a step carried out, with its words in the trail, or not at all

Who is asked, and who acts
    rollouts        what people ask and do
    full_models     fetches the full models that the fleet needs, and retires the others
    engine          steps, for as long as something is to be done; one replica at a time
"""
