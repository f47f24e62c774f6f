"""Data sets: the samples of a folder or file, as inputs of a bundle, with their labels and clusters.

dataset   recognises the kind of data; samples, inputs, truth
files     files of a folder or a zip archive
videos    one frame in N of videos
tables    columns of CSV, JSON lines, NPZ and Parquet files
boxes     labelled boxes: COCO JSON and the text form of YOLO
masks     labelled pixels: PNG files
"""
