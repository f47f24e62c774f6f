"""Brings a model or a configuration to a fleet in stages, and judges each stage before the next one begins.

Rules: pure functions without I/O
    subject          a bundle or a configuration, as the fleet's documents describe it
    definition       what a rollout is to do, and the state of a rollout and of its devices
    states           the states of a rollout, and the commands that each allows
    stages           which devices a stage takes, and which are its control group
    device_progress  the state of one device in a rollout, from what it reports
    measurements     what devices did before and since, as it is compared
    judgement/       whether devices with the new model do worse than those without
    changes          what a step sees and changes, and how a stage ends
    stage_steps      which devices a stage takes, when they get the offer, and how they go back
    evaluation       observes both groups, and judges the stage
    late_joiners     offers a completed rollout's model to devices that join later
    step             from the state of a rollout, its devices and the time to what changes
    commands         what a person's command changes
    plan             what a rollout would do

Store
    tables           the tables
    records          rollouts, their devices, their evaluations, and the lease of the replica that drives them
    mirror           what a rollout read before, so that a step reads only what has changed since
    view             the fleet in the store as a step sees it
    bundle_use       which rollouts still need a signed version
    execution        executes a step with its audit log entries, or not at all

Services
    rollouts         what people ask and do
    full_models      fetches the full models that the fleet needs, and retires the others
    engine           runs steps for as long as there is work; one replica at a time
"""
