"""The workbench: creates bundles from model files, measures them on data, and certifies them.

Create a bundle
    spec            the description of a bundle, from code or a TOML recipe
    step_syntax     the short form of processing steps in flags and recipes
    step_usage      that form of each step, with its meaning
    bundle          copies, hashes and checks model files, and puts the bundle into place
    ports           the input and output of a model file, and outputs that are not a classifier's
    model_checks    checks that processing, model, labels and value ranges fit together
    row_checks      checks that the answer to a row depends on this row alone
    precision       the number format of a model file's weights
    golden          golden inputs, and the answers that each device must give
    inspect         summarises a bundle, and verifies and corrects it on this machine

Recognise model files
    model_file      the description of a file: ports, operators, metadata, labels
    trial           one run on one image, before anything is known
    recognition     the families of models, and the steps that feed and read them
    decodings       lets data decide the properties that a file leaves open
    pairing/        from two model files to a certified bundle

Certify
    evidence        the answers of both models to a data set, on this machine or on a device
    selection       the decisions on the rows that are set aside: score, temperature, start of testing
    auroc           how well a score tells failed rows from successful ones
    sequences       signs that samples depend on each other, such as frames of one video
    event_promises  promises about events in words, and the events without a promise
    score_table     a table of scores, such as the audits of a device
    certify         proves a contract, and writes the bundle with its certificate
    calibrate       chooses temperature and threshold, without a certificate

Measure
    data/           data sets: images, recordings, videos, boxes, masks, tables; labels and clusters
    observe         runs models sample by sample, and times each answer
    quality         measures the task's figure of each model
    infer           answers files in this process, as both tiers decide
    evaluate        figures of the edge model alone, the full model alone, and both tiers
    report_data     the numbers behind plots and page
    plots           draws the plots
    report          writes plots and page into a folder
    splitting/      measures where a model can be cut in two

Compress
    compress/       smaller and faster variants, chosen by measurement
"""
