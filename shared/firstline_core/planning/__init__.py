"""What a device had best do, reckoned from what was measured: pure functions of documents.

plan     how to run a bundle here: variant, provider, threads, batch, and which way to the full model's answer
split    a full model cut in two: what it costs by link, and from which bandwidth on which way wins
words    a plan in sentences
"""
