"""The workbench: creates bundles from model files, measures them on data, and certifies them.

Create a bundle
    bundle             copies, hashes and checks model files, and puts the bundle into place
    spec               the description of a bundle, before any file is read
    recipe             the same, declared in a TOML file
    step_syntax        the short form of processing steps in flags and recipes
    model_checks       checks that processing, model and labels fit together
    quantised_ranges   checks that a quantised input can hold the values of the steps
    precision          the number format of a model file's weights
    golden             golden inputs, and the answers that each device must give
    bundle_folder      moves a finished bundle into place, completely or not at all
    inspect            summarises a bundle, and verifies it on this machine

Certify
    certify            certifies an edge variant, and writes the bundle with its certificate
    field_certificate  certifies again on what a device audited
    evidence           the answers of both models to a data set
    device_evidence    the same, computed by a real device
    selection          the decisions made on the rows that are set aside
    scores             fits the learned score, and chooses the best score
    contracts          certificates on all answers, by predicted class, by known group
    detections         compares the boxes of two detectors, and writes a table of scores
    groups             the group of each image
    calibrate          chooses temperature and threshold, without a certificate

Compress
    compress           smaller and faster variants, chosen by measurement

Measure
    dataset            labelled images on disk
    observe            runs models image by image, and times each answer
    measure            the answers of each model to labelled data, row by row
    evaluate           figures of the edge model alone, the full model alone, and both tiers
    splitting/         measures where a model can be cut in two
    curves             the numbers behind the plots
    report_data        everything that plots and page show about one edge variant
    plots              draws the plots
    report_page        renders one HTML page
    report             writes plots and page into a folder
    accuracy           accuracy of each model on labelled images
    pareto             draws cost against accuracy
"""
