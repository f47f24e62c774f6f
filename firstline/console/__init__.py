"""The fleet in a browser: a separate service that uses a gateway's REST API and nothing else.

View models, pure functions of the gateway's answers
    cells                words and tones of table cells
    overview_view        the whole fleet, and what needs attention
    contracts_view       promises and what their audits show
    devices_view         all devices, and one device with its profiles
    rollouts_view        rollouts, the stages of one, its evaluations
    answers_view         which tier answered, in the last 24 hours

Service
    polling              the gateway's last answer to each question, refreshed at a limited rate
    connections          limits on what strangers may send, before a person is known
    access               allowed hosts, allowed origins, and sessions
    accounts             who may sign in, and with which role
    attempts             the rate limit of wrong passwords
    sessions             the persons who are signed in
    sign_in              the routes with which persons sign in and out
    settings             address, accounts and gateway
    service              the process

Pages
    theme                colours and components of both themes
    page                 the elements of every page: frame, cards, tables, search forms
    dialogs              buttons whose command is confirmed
    overview_page        the whole fleet
    contract_pages       all contracts, and those of one bundle
    device_pages         all devices, and one device
    enrol_page           join tokens for devices
    rollout_form         the plan of a new rollout
    rollout_pages        all rollouts, and one rollout with its commands
    audit_page           the audit log
    settings_page        this console, the registry, and the limit on escalations
"""

DEFAULT_PORT = 8090
"""Here, because the help of `firstline console` shows it and loads no page."""
