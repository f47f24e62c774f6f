"""The fleet in a browser: a separate service that uses a gateway's REST API and nothing else.

View models, pure functions of the gateway's answers
    cells                words and tones of table cells
    devices_view         all devices, and one device
    rollouts_view        rollouts, the stages of one, its evaluations
    answers_view           which tier answered, over time
    profiles_view        costs of models on machines, and requests to measure them

Service
    polling              the gateway's last answer to each question, refreshed at a limited rate
    access               allowed hosts, allowed origins, the password and its rate limit
    settings             address, password and gateway
    service              the process

Pages
    page                 the elements of every page: frame, tables, search forms
    device_pages         all devices, and one device
    rollout_pages        all rollouts, and one rollout with its commands
    tier_page            the chart of tiers
    profile_pages        all profiles, and one profile
"""
