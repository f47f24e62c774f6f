"""The accuracy contract in the field: the full model checks a sample of the edge answers.

Files
    auditor              draws answers at random
    audit_sender         has the full model check drawn answers, and reports how each audit ended
    certificate_states   the state of each certificate, and the moves between the states
    certificate_reports  what `status` and metrics show of them
    records              the findings about a certificate, and their file
    samples              scores and losses of audited answers, for the next certification
"""
