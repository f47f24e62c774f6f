"""What the gateway tells of itself.

Rooms
    journal         one log line and one count for each request
    counting        answers, counted a moment after they went out
    statistics      how often, and how long, each model ran
    metrics         what is counted beside the requests
"""
