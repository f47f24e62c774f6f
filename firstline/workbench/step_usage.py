"""The processing steps in their short form, with their meaning, for help and errors."""

from __future__ import annotations

from collections.abc import Mapping

USAGE: Mapping[str, tuple[str, str]] = {
    "decode": ("decode[:RGB|BGR|L][:background=R/G/B][:bits=N]", "JPEG or PNG bytes to upright pixels, 0 to 255"),
    "center_crop": ("center_crop[:FRACTION]", "the central square, FRACTION of the short side"),
    "resize": (
        "resize:WIDTHxHEIGHT[:FILTER][:letterbox=corner|center][:pad=N][:rounding=down|nearest]",
        "nearest, bilinear (default), bicubic or lanczos; letterbox keeps the aspect ratio, rounds the "
        "sides down (as YOLOX does) or to the nearest pixel, and pads with N, or with 0",
    ),
    "standardize": ("standardize", "of numbers that are no image, first: each row minus its mean, by its deviation"),
    "observed": (
        "observed[:NUMBERS]",
        "of a time series, first: the last numbers of each row (1) are not for the model, but for residual",
    ),
    "decode_audio": ("decode_audio", "WAV, FLAC or OGG bytes to samples from -1 to 1; needs resample"),
    "mono": ("mono", "the mean of all channels"),
    "resample": ("resample:RATE", "to RATE samples a second, from the file's own rate"),
    "crop": ("crop:SAMPLES[:start|center|end]", "at most SAMPLES samples; the start of the clip unless named"),
    "pad": ("pad:SAMPLES[:end|both]", "zeros up to SAMPLES samples; at the end unless named"),
    "windows": (
        "windows:SAMPLES:HOP[:mean|max]",
        "windows that start every HOP samples; the mean of their answers, or the maximum, is the clip's answer",
    ),
    "scale": ("scale[:MEAN[:STD]]", "(x - MEAN) / STD; 0 and 255 unless named"),
    "layout": ("layout:NHWC|NCHW", "order of the axes"),
    "flatten": ("flatten", "all axes but the rows' into one"),
    "graph": ("graph:FILE.onnx", "an ONNX graph with one input and one output"),
    "detrend": ("detrend[:linear|constant]", "signals minus their best line, or their mean"),
    "welch": (
        "welch:RATE:SAMPLES[:HOP]",
        "power spectral density by windows of SAMPLES; HOP is half of it unless named",
    ),
    "band_energies": ("band_energies:RATE:EDGES", "mean power of signals between edges in hertz, such as 0/10/50/100"),
    "envelope": ("envelope", "amplitude of signals over time"),
    "mel": (
        "mel:RATE:SAMPLES:HOP[:BANDS][:LOW][:HIGH][:log=false][:frames=last]",
        "logarithms of energies in mel bands (40 unless named), [frames, bands] unless frames=last",
    ),
    "decode_text": (
        "decode_text[:NFC|NFD|NFKC|NFKD][:lower=true][:strip=true]",
        "UTF-8 bytes to text, normalised where named",
    ),
    "tokenize": (
        "tokenize:FILE.json[:ids|mask|types][:LENGTH][:padding=longest|length][:truncate=true]",
        "after decode_text: numbers of tokens, at most LENGTH (512), padded to the longest row or to LENGTH",
    ),
    "softmax": ("softmax", "after the model: logits to probabilities"),
    "sigmoid": ("sigmoid", "after the model: each logit to a probability of its own"),
    "columns": ("columns:NUMBERS", "after the model: only these columns, in this order; the first is 0"),
    "spread": (
        "spread[:OUTPUT][:columns=NUMBERS]",
        "after a regression model: the error that it expects, from another output or from columns of its own one",
    ),
    "unstandardize": ("unstandardize", "last, after a regression model: from the units of standardize to the input's"),
    "reconstruction": (
        "reconstruction[:mean_square|mean_absolute|largest]",
        "first, after an autoencoder: how far its output is from its prepared input",
    ),
    "residual": (
        "residual[:mean_square|mean_absolute|largest][:spread=OUTPUT]",
        "first, after a forecast: how far it is from what was observed, by the error that the model expects",
    ),
    "threshold": (
        "threshold:VALUE[:above|below][:scale=N]",
        "last, after an anomaly model: its operating score, and the side of anomalies; "
        "N is a typical distance from VALUE",
    ),
    "gallery": (
        "gallery:FILE.npy[:least=N]",
        "last, after a model of embeddings: the most similar row of the file with a cosine of at least N",
    ),
    "argmax": ("argmax[:NHWC|NCHW]", "after a segmentation: the class of each pixel, from the scores of the classes"),
    "class_scores": (
        "class_scores:OUTPUT[:logits|probabilities][:NHWC|NCHW]",
        "after a segmentation: the scores of the classes from another output, only for the confidence",
    ),
    "ctc": (
        "ctc:FILE.txt[:BLANK][:ntc|tnc|nct]",
        "after a model of text: the likeliest symbols over time; FILE has one per line, BLANK is 0 unless named",
    ),
    "confidence": ("confidence:OUTPUT", "after a model of text: the probability of each token, from another output"),
    "label_offset": ("label_offset[:COLUMNS]", "after the model: drop leading columns, 1 unless named"),
    "binary": ("binary[:probability|logit]", "after the model: one output, of the second label, to two"),
    "yolox": ("yolox[:STRIDES]", "after a detector: boxes of YOLOX; strides 8/16/32 unless named"),
    "fastestdet": ("fastestdet", "after a detector: boxes of FastestDet"),
    "yolo": (
        "yolo[:objectness=true][:unit=fractions]",
        "after a detector: boxes of YOLOv8 to YOLO11; with objectness, of YOLOv5 and YOLOv7",
    ),
    "detr": ("detr:LOGITS:BOXES[:softmax|sigmoid]", "after a detector: boxes of DETR, from two outputs by name"),
    "ssd": (
        "ssd[:BOXES:CLASSES:SCORES[:COUNT]][:corners=xyxy][:unit=pixels]",
        "after a detector: boxes, classes and scores with suppression inside, from outputs in TFLite's order unless "
        "named; corners are yxyx and fractions unless named",
    ),
    "anchors": (
        "anchors:OFFSETS:SCORES[:activation=softmax|none][:strides=N/N...][:least=N][:most=N][:ratios=N/N...][:lowest=0]",
        "after a detector: boxes of SSD without suppression inside, from two outputs by name; TensorFlow's anchors "
        "unless named, scores with the background first",
    ),
    "box_rows": (
        "box_rows[:pixels|fractions][:numbered=true]",
        "after a detector: rows of x1, y1, x2, y2, score, class, with suppression inside; numbered, rows of image, x1, "
        "y1, x2, y2, class, score",
    ),
    "class_map": (
        "class_map:NUMBERS",
        "boxes and masks: the label of each class, -1 for none; coco91 or coco90 for COCO's category ids from 0 or 1",
    ),
    "suppress": (
        "suppress:SCORE[:iou=N][:floor=N][:limit=N]",
        "last, after a decoder: drop boxes that overlap a better one; SCORE and more is a detection",
    ),
}
"""How each step is spelled, and what it does."""
