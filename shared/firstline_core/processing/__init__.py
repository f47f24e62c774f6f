"""Processing of inputs and outputs: the declared steps, and the functions that carry them out.

Modules
    steps           the declared steps, a part of the model's digest
    compile         compiles them into one function
    images          steps on images
    image_header    what an image file says about itself
    geometry        where a model's input lies in the original image
    audio           steps on sound
    audio_header    the declared size of a clip
    signals         steps on signals of sensors
    windows         the answers to the windows of a clip
    text            tokens from text
    ctc             text from the output of models that were trained with CTC
    boxes           a detector's boxes
    masks           maps of classes
    standardize     scales the numbers of each row
    memory          the most memory that steps hold
    cost            the cost of preparing a request
    decoding        when and in which thread images are decoded
    trial           inputs for trial runs
"""

from typing import Final

GENERATION: Final = 3
"""Generation of the processing, a part of every cache key.

Raise it with every change after which a step gives other values for some input, although its declaration, and so the
model's digest, is the same: decoding, resizing, softmax. A device's cache survives restarts and upgrades.
"""
