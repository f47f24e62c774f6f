"""Plans how a device should run a bundle, from measurements: pure functions of documents.

    plan            variant, provider, threads and batch, and the fastest way to the full model's answer
    split           the cost of a full model cut in two, by link, and the bandwidths at which each way is the fastest

`firstline.workbench.splitting` measures the cuts.
"""
