"""Brings a model or a configuration to a fleet in stages, and judges each stage before the next one begins.

Rules: pure functions without I/O
    rollout          what a rollout is to do, which devices each stage takes, and the states of both
    device_progress  the state of one device in a rollout, from what it reports
    judgement/       whether devices with the new model do worse than those without: promote, hold or abort
    step             one step: begins a stage, offers the model, observes and judges both groups, goes back
    late_joiners     offers a completed rollout's model to devices that join later
    commands         the commands of an operator: when they are allowed, and what they change
    plan             what a rollout would do

Store
    records          rollouts, their devices, their evaluations, and the lease of the replica that drives them
    fleet_view       the fleet in the store as a step sees it, read incrementally
    bundle_use       which rollouts still need a signed version

Services
    metrics          the number of rollouts by state
    rollouts         the requests of operators
    driver           runs steps for as long as there is work; one replica at a time
    full_models      fetches the full models that the fleet needs, and retires the others
"""
