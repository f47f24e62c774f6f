"""The workbench: makes bundles from anyone's model files, and measures them on anyone's data.

Making a bundle
    bundle          from model files to a bundle: copied, hashed, checked, put into place
    spec            what it is to be made of, before files are read
    recipe          that, declared in a TOML file
    spelling        processing steps in short, for flags and recipes
    checks          do processing, model and labels fit? Each mistake as what to change
    ranges          do the steps make values that a quantised input can hold?
    precision       the number format of a model file's weights
    golden          inputs that each device must answer as they were answered here
    placing         puts a finished bundle where it belongs, whole or not at all
    inspect         what a bundle says of itself, and whether it does so here

Certifying
    certify         certifies an edge variant, and writes the bundle with its certificate
    field           certifies anew on what a device audited
    evidence        what both models said of a data set
    device          the same, as a real device computes it
    selection       what part of the data decides before the rest certifies
    scores          fits the learned score, and chooses the best
    contracts       certificates on the stream, by predicted class, by known group
    detections      two detectors' boxes to a table of scores and agreements
    groups          which group each image belongs to
    calibrate       chooses temperature and threshold; promises nothing

Compressing
    compress        smaller and faster variants, judged by measurement

Measuring
    dataset         labelled images on disk
    observe         runs models, image by image, and times each answer
    measure         what each model said of labelled data, row by row
    evaluate        edge only, full only and tiered
    splitting/      where a model may be cut in two, and what each part costs
    curves          the numbers behind the plots
    sheet           all that plots and page show of one edge variant
    plots           draws it
    page            shows it, as one HTML page
    report          writes plots and page into a folder
    accuracy        how many answers of each model are right
    pareto          draws what models cost against what they are worth
"""
