"""The table of wrong inputs by area, as users make them."""

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from support import profiles
from support.grpc_calls import digits_message
from support.images import encode
from support.wrong_inputs import FLEET, Call, Case, Command, Request

from firstline_core.profile import profile
from firstline_core.protocol.grpc.schema import message

_RUN = "edge-agent run --config edge-agent.toml --port 0"
_STATE = "[agent]\nstate_dir = "
_LINK = '[[links]]\nkind = "http"\nurl = '
_BROKER = '[[links]]\nkind = "mqtt"\nhost = "broker"\n'
_MODELS = '[models]\ndirectory = "models"\n'
_HOOK = "[webhooks.ops]\n"
_EVENTS = f'{_HOOK}url = "https://hooks.example.com"\nevents = '
_RECIPE = """\
name = "scans"
version = 1
labels = "labels.txt"
preprocess = "decode:L,resize:8x8,scale"
postprocess = "softmax"

[[edge]]
file = "edge.onnx"

[full]
file = "full.onnx"

[policy]
score = "margin"
threshold = 0.9
"""
_IMAGE = encode(np.zeros((8, 8), np.uint8))
_MAKE = "firstline bundle create --recipe recipe.toml --out scans"
_EVALUATE = "firstline evaluate models/digits --data"
_PROFILE = profile.encode(profiles.profile(1.0))
_CERTIFY = "firstline certify models/digits --data heldout --epsilon 0.05 --delta 0.05"
_SCORES = "firstline certify --scores scores.csv --epsilon 0.05 --delta 0.05"
_PAIR = "firstline pair --edge edge.onnx --full full.onnx --data heldout"
_AT = "firstline device list --gateway"
_LIST = f"{_AT} https://gateway:8080"
_TIER = "http://127.0.0.1:8070 --key-file ops.key"
_PUSH = "firstline config push c.toml"
_CONFIGURATION = 'name = "a"\nversion = 1\n'
_ROLL_OUT = "firstline rollout create digits 1 --file rollout.toml"
_JOIN = "edge-agent join https://gateway:8080 --token-file"
_STATED = "--set agent.state_dir=state"
_TOKEN = f"--token-file press-9.token {_STATED}"
_PLAN = f"--set 'models.directories=[\"models\"]' {_STATED}"
_KEYS = {"g.toml": '[store]\nurl = "sqlite:///keys.db"\n'}
_CONTEXTS = ".config/firstline/contexts.json"
_ID = "01a2019f-6dd1-704a-a261-d1635d589c27"


def _recipe(wrong: str, right: str, text: str, code: int = 2) -> Command:
    """A recipe in which one line is wrong."""
    assert right in _RECIPE
    description = f"recipe.toml: {text or f'without {right}'.strip()}\n"
    return Command(wrong, _MAKE, {"recipe.toml": _RECIPE.replace(right, text)}, code, given=description)


def _manifest(wrong: str, text: str) -> Command:
    return Command(wrong, "firstline bundle get broken", {"broken/manifest.json": text}, 1)


def _fleet(wrong: str, line: str, code: int = 1, **files: str) -> Command:
    return Command(wrong, line, {name.replace("_", "."): text for name, text in files.items()}, code, FLEET)


def _edge(wrong: str, text: str, line: str = "edge-agent run --config edge-agent.toml") -> Command:
    return Command(wrong, line, {"edge-agent.toml": text})


def _gateway(wrong: str, text: str) -> Command:
    return Command(wrong, "firstline-gateway check --config gateway.toml", {"gateway.toml": text})


_PROGRAMS = (
    Command("a command that does not exist", "firstline evalute models/digits"),
    Command("an option that does not exist", "firstline evaluate models/digits --date heldout"),
    Command("a required option is missing", "firstline evaluate models/digits"),
    Command("a required argument is missing", "firstline run"),
    Command("a number that is a word", "firstline evaluate models/digits --data heldout --limit many"),
    Command("a number out of range", "firstline run models/digits --port 99999"),
    Command("a value that is not in the list", "firstline evaluate models/digits --data heldout -o yaml"),
    Command("an unexpected argument", "firstline run models/digits models/text"),
    Command("a route that does not exist", "firstline infer models/digits scan.png --route clowd"),
    Command("a command of the agent that does not exist", "edge-agent statsu"),
    Command("an option of the agent that does not exist", "edge-agent status --confg edge-agent.toml"),
    Command("a setting without a value", "edge-agent run --set api.port"),
    Command("a time that is not one", "edge-agent audit list --since yesterday"),
    Command("a list of numbers that is not one", "edge-agent profile create models/digits --threads all"),
    Command("a command of the gateway that does not exist", "firstline-gateway keys list"),
    Command("an unknown scope", "firstline-gateway key create shop --scope flet"),
    Command("a number of the agent that is a word", "edge-agent run --port http"),
    Command(
        "an option of the agent that is misspelt and required", "edge-agent join https://gateway:8080 --token-fle t"
    ),
    Command("a noun of the agent without its verb", "edge-agent update"),
    Command("an unexpected argument for the agent", "edge-agent status press-9"),
    Command("an option of the agent without its value", "edge-agent plan explain --splits"),
    Command("an option without its value", "firstline evaluate models/digits --data"),
    Command("a bandwidth below 0", "edge-agent plan explain --bandwidth -1"),
    Command("a time at full load below 0", "edge-agent profile create models/digits --sustained -1"),
    Command("a required choice is missing", "firstline keys rotate"),
)

_BUNDLES = (
    Command("no recipe under this name", "firstline bundle create --recipe recip.toml --out scans"),
    _recipe("a misspelt key", 'labels = "labels.txt"', 'lables = "labels.txt"'),
    _recipe("a key without a value", "version = 1", "version ="),
    _recipe("a key twice", "version = 1", "version = 1\nversion = 2"),
    _recipe("a version in words", "version = 1", 'version = "one"'),
    _recipe("no name", 'name = "scans"\n', ""),
    _recipe("a name with spaces", 'name = "scans"', 'name = "my scans"'),
    _recipe("version 0", "version = 1", "version = 0"),
    _recipe("a threshold in percent", "threshold = 0.9", "threshold = 90"),
    _recipe("a threshold that is not a number", "threshold = 0.9", "threshold = nan"),
    _recipe("a misspelt score", 'score = "margin"', 'score = "marign"'),
    _recipe("a misspelt step", "resize:8x8", "rezise:8x8"),
    _recipe("a step without its argument", "resize:8x8", "resize"),
    _recipe("a step with a wrong argument", "resize:8x8", "resize:8xtall"),
    _recipe("a step in the wrong order", "decode:L,resize:8x8,scale", "resize:8x8,decode:L,scale"),
    _recipe("steps of another size than the model's", "resize:8x8", "resize:28x28"),
    _recipe("colours for a model of grey images", "decode:L", "decode:RGB"),
    _recipe("logits without softmax", 'postprocess = "softmax"', 'postprocess = ""'),
    _recipe("no such labels", '"labels.txt"', '"label.txt"'),
    _recipe("too few labels", '"labels.txt"', '"notes.txt"'),
    _recipe("labels that are not UTF-8", '"labels.txt"', '"latin1.txt"'),
    _recipe("a folder instead of labels", '"labels.txt"', '"heldout"'),
    _recipe("no such model", '"edge.onnx"', '"edge_v2.onnx"'),
    _recipe("a model of an unknown kind", '"edge.onnx"', '"notes.txt"'),
    _recipe("text instead of a model", '"edge.onnx"', '"notes.onnx"', 1),
    _recipe("a truncated model", '"edge.onnx"', '"cut.onnx"', 1),
    _recipe("a folder instead of a model", '"edge.onnx"', '"heldout"'),
    _recipe("a table that does not exist", "[policy]", "[policies]"),
    _recipe("a detector's table for a classifier", "[policy]", "[detection]\nk = 10\n\n[policy]"),
    Command("a recipe that is not UTF-8", _MAKE, {"recipe.toml": 'name = "Schl\xfcssel"\n'.encode("latin-1")}),
    Command("a bundle without a model", "firstline bundle create --name scans --labels labels.txt --out scans"),
    Command("a bundle in place of another", f"{_MAKE.rpartition(' ')[0]} models/digits", {"recipe.toml": _RECIPE}),
    Command("a folder that is not a bundle", "firstline bundle get heldout"),
    Command("a file instead of a bundle", "firstline bundle get edge.onnx"),
    Command("no such bundle", "firstline run models/digit"),
    _manifest("an empty manifest", ""),
    _manifest("a manifest that is not one", '{"name": "a"}'),
    _manifest("a manifest with a name that is a number", '{"name": 1}'),
    _recipe("a misspelt argument of a step", "resize:8x8", "resize:8x8:paad=3"),
    _recipe("a misspelt choice of a step", "resize:8x8", "resize:8x8:bilinaer"),
    _recipe("a size of 0", "resize:8x8", "resize:0x8"),
    _recipe("a standard deviation of 0", "scale", "scale:0:0"),
    _recipe("a misspelt step after the model", '"softmax"', '"sofmax"'),
    _recipe("a misspelt kind of an input", "[policy]", '[input]\nkind = "imgae"\n\n[policy]'),
    _recipe("a misspelt key of a model's input", "[policy]", '[inputs.image]\nkin = "image"\n\n[policy]'),
    _recipe("a misspelt task", "[policy]", '[task]\nkind = "detecton"\n\n[policy]'),
    _recipe("a misspelt key of a task", "[policy]", "[detection]\nkk = 10\n\n[policy]"),
    _recipe("two tasks", "[policy]", "[detection]\nk = 10\n\n[regression]\n\n[policy]"),
    _recipe("a misspelt output of a model", 'file = "edge.onnx"', 'file = "edge.onnx"\noutput = "logts"'),
    _recipe("a misspelt output of the full model", 'file = "full.onnx"', 'file = "full.onnx"\noutput = "logts"'),
    _recipe(
        "a misspelt output of a model whose file two models share",
        "[full]",
        '[[edge]]\nfile = "edge.onnx"\noutput = "logts"\n\n[full]',
    ),
    Command(
        "a misspelt output of a model whose file's name is the end of another's",
        _MAKE,
        {"recipe.toml": _RECIPE.replace("edge.o", "net.o").replace('full.onnx"', 'resnet.onnx"\noutput = "logts"')},
        given='recipe.toml: [[edge]]\nfile = "net.onnx"\n\n[full]\nfile = "resnet.onnx"\noutput = "logts"\n',
    ),
    _recipe(
        "steps of the full model in the wrong order",
        'file = "full.onnx"',
        'file = "full.onnx"\npreprocess = "resize:8x8,decode:L"',
    ),
    _recipe("two models with one id", "[full]", '[[edge]]\nfile = "edge.onnx"\nid = "edge-onnx-fp32"\n\n[full]'),
    _recipe("a misspelt input of a model", 'file = "edge.onnx"', 'file = "edge.onnx"\ninput = "imgae"'),
    Command("a folder instead of a recipe", "firstline bundle create --recipe heldout --out scans"),
    Command("an empty recipe", "firstline bundle create --recipe empty --out scans"),
    Command(
        "a misspelt step on the command line",
        "firstline bundle create --name scans --labels labels.txt --edge edge.onnx --out scans --preprocess resiz:8x8",
    ),
)


def _photos(wrong: str, labels: str | bytes, image: bytes = _IMAGE) -> Command:
    """A folder of one image with its labels."""
    return Command(wrong, f"{_EVALUATE} photos", {"photos/labels.csv": labels, "photos/images/a.png": image})


def _boxes(wrong: str, name: str, text: str) -> Command:
    """A folder of one image with boxes."""
    files = {f"boxes/{name}": text, "boxes/images/a.png": _IMAGE}
    return Command(wrong, "firstline evaluate models/detection --data boxes", files)


def _coco(wrong: str, category: str = "dog", width: int = 5, image: int = 1) -> Command:
    box = {"image_id": image, "category_id": 1, "bbox": [0, 0, width, 5]}
    images, categories = [{"id": 1, "file_name": "a.png"}], [{"id": 1, "name": category}]
    text = json.dumps({"images": images, "categories": categories, "annotations": [box]})
    return _boxes(wrong, "annotations.json", text)


def _rows(wrong: str, text: str | bytes, name: str = "rows.csv", options: str = "") -> Command:
    """A table for a bundle with the input `x` FP32 [n, 2]."""
    return Command(wrong, f"firstline evaluate models/classification --data {name}{options}", {name: text})


_DATA = (
    Command("no such data", f"{_EVALUATE} heldoutt"),
    Command("a model instead of data", f"{_EVALUATE} edge.onnx"),
    Command("an empty folder", f"{_EVALUATE} photos", {"photos/.keep": ""}),
    _photos("labels without a column file", "path,label\na.png,1\n"),
    _photos("a label that the bundle lacks", "file,label\na.png,ten\n"),
    _photos("a label out of range", "file,label\na.png,10\n"),
    _photos("an image that is not there", "file,label\nb.png,1\n"),
    _photos("an empty image", "file,label\na.png,1\n", b""),
    _photos("a path outside of the data", "file,label\n../scan.png,1\n"),
    _photos("labels that are not UTF-8", "file,label\n\xfc.png,1\n".encode("latin-1")),
    _photos("an empty labels.csv", ""),
    _boxes("a COCO file that is not JSON", "annotations.json", '{"images": ['),
    _boxes("a COCO file without images", "annotations.json", "{}"),
    _coco("a category that the bundle lacks", category="horse"),
    _coco("a box with a negative width", width=-5),
    _boxes("a YOLO line with a word", "labels/a.txt", "dog 0.5 0.5 0.1 0.1\n"),
    _boxes("a YOLO line in pixels", "labels/a.txt", "0 120 80 40 40\n"),
    _rows("a table without the input's column", "y,label\n1,a\n"),
    _rows("a cell that is not a number", 'x,label\n"[1, 2]",a\n"[1, many]",b\n'),
    _rows("a row of another length", 'x,label\n"[1, 2, 3]",a\n'),
    _rows("NaN in a row", 'x,label\n"[1, NaN]",a\n'),
    _rows("a number beyond FP32", 'x,label\n"[1, 1e99]",a\n'),
    _rows("an empty cell", "x,label\n,a\n"),
    _rows("an unknown label in a table", 'x,label\n"[1, 2]",left\n'),
    _rows("a label column that is not there", 'x,label\n"[1, 2]",a\n', options=" --label-column side"),
    _rows("a column twice", "x,x\n1,2\n"),
    _rows("a table without rows", "x,label\n"),
    _rows("JSON lines that are not JSON", '{"x": [1, 2]}\n{"x": [1,\n', "rows.jsonl"),
    _rows("an NPZ file that is not one", "1,2\n", "rows.npz"),
    _rows("a Parquet file that is not one", "1,2\n", "rows.parquet"),
    Command("a video that is not one", f"{_EVALUATE} film.mp4", {"film.mp4": "frames\n"}),
    Command("an archive that is not one", f"{_EVALUATE} scans.zip", {"scans.zip": "images\n"}),
    Command("recordings for a model of images", f"{_EVALUATE} sound", {"sound/a.wav": b"RIFF"}),
    Command("a link to itself", f"{_EVALUATE} loop"),
    _photos("labels with semicolons", "file;label\na.png;1\n"),
    _photos("labels with an open quote", 'file,label\n"a.png,1\n'),
    _photos("a bitmap", "file,label\na.png,1\n", b"BM" + bytes(100)),
    _coco("a box of an image that is not listed", image=7),
    _boxes("a YOLO class that the bundle lacks", "labels/a.txt", "7 0.5 0.5 0.1 0.1\n"),
    _rows("a table with semicolons", "x;label\n1;a\n"),
    _rows("a row with more cells than columns", 'x,label\n"[1, 2]",a,b,c\n'),
    _rows("JSON lines with a list", "[1, 2]\n", "rows.jsonl"),
    _rows("an empty Parquet file", b"", "rows.parquet"),
    Command("a document instead of data", f"{_EVALUATE} scans.pdf", {"scans.pdf": "%PDF"}),
)

_WORKBENCH = (
    Command("no model at all", "firstline pair --data heldout"),
    Command("a misspelt edge model", "firstline pair --edge egde.onnx --full full.onnx --data heldout"),
    Command("text instead of the edge model", "firstline pair --edge notes.onnx --full full.onnx --data heldout"),
    Command("a promise that is not one", f"{_PAIR} --promise often"),
    Command("a promise about an unknown label", f"{_PAIR} --promise 'missed person 5% at 90%'"),
    Command("a promise of 150 %", f"{_PAIR} --promise 'missed zero 150% at 90%'"),
    Command("a choice that is not one", f"{_PAIR} --choose 1"),
    Command("certify without data", "firstline certify models/digits"),
    Command("a share in percent", "firstline certify models/digits --data heldout --epsilon 5 --delta 0.05"),
    Command("epsilon alone", "firstline certify models/digits --data heldout --epsilon 0.05"),
    Command("an unknown score", f"{_CERTIFY} --score marign"),
    Command("an unknown edge variant", f"{_CERTIFY} --edge edge-tpu"),
    Command("a table of scores without a column", _SCORES, {"scores.csv": "score,same\n0.9,1\n"}),
    Command("a score that is not a number", _SCORES, {"scores.csv": "score,agree\n0.9,1\nhigh,1\n"}),
    Command("an agreement of 2", _SCORES, {"scores.csv": "score,agree\n0.9,2\n"}),
    Command("no such table", "firstline certify --scores audits.csv --epsilon 0.05 --delta 0.05"),
    Command("groups without their column", f"{_CERTIFY} --groups groups.csv", {"groups.csv": "file,site\na.png,1\n"}),
    Command("a student without a training", "firstline compress models/digits --data heldout --student edge-onnx"),
    Command("an unknown model to compress", "firstline compress models/digits --data heldout --of edge-tpu"),
    Command("compress without labels", "firstline compress models/digits --data heldout/images.zip"),
    Command("an output folder that exists", "firstline compress models/digits --data heldout --out heldout"),
    Command("a profile that is not one", "firstline profile push notes.txt", environ=FLEET),
    Command("a cut at an unknown tensor", "firstline profile split models/digits --data heldout --at relu_9"),
    Command("an unknown variant", "firstline profile create models/digits --variant edge-tpu"),
    Command("a folder instead of a table of scores", "firstline certify --scores heldout --epsilon 0.05 --delta 0.05"),
    Command("a table of scores that is not UTF-8", _SCORES, {"scores.csv": b"score,agree\n\xff,1\n"}),
    Command("a table of scores without rows", _SCORES, {"scores.csv": "score,agree\n"}),
    Command("groups that lack an image", f"{_CERTIFY} --groups groups.csv", {"groups.csv": "file,group\na.png,1\n"}),
    Command("a folder of data as output", f"{_PAIR} --out heldout"),
    Command("a folder instead of the edge model", "firstline pair --edge heldout --full full.onnx --data heldout"),
    Command("an empty edge model", "firstline pair --edge empty --full full.onnx --data heldout"),
    Command("a rate below 0", "firstline profile predict p.json edge=-1", {"p.json": _PROFILE}),
    Command("a profile that is not there", "firstline profile predict press.json edge=1"),
)

_INFER = (
    Command("no such file", "firstline infer models/digits scann.png"),
    Command("a truncated image", "firstline infer models/digits cut.png", code=1),
    Command("a GIF", "firstline infer models/digits scan.gif", code=1),
    Command("an empty file", "firstline infer models/digits empty", code=1),
    Command("text instead of an image", "firstline infer models/digits notes.txt", code=1),
    Command("text instead of an image, with -o json", "firstline infer models/digits notes.txt -o json", code=1),
    Command("an image for a model of numbers", "firstline infer models/classification scan.png", code=1),
    Command("too many numbers", "firstline infer models/classification row.json", {"row.json": "[1, 2, 3]"}, 1),
    Command("NaN", "firstline infer models/classification row.json", {"row.json": "[1, NaN]"}, 1),
    Command("text instead of numbers", "firstline infer models/classification row.json", {"row.json": '["a", "b"]'}, 1),
    Command("exchanged arguments", "firstline infer scan.png models/digits"),
    Command("an unknown model of a tier", f"firstline infer digit scan.png --url {_TIER}", code=1),
    Command("a tier that is not there", "firstline infer digits scan.png --url http://127.0.0.1:9", code=1),
    Command("a tier without its key", "firstline infer digits scan.png --url http://127.0.0.1:8070", code=1),
    Command("an address without http", "firstline infer digits scan.png --url 127.0.0.1:8070"),
    Command(
        "https for a tier without TLS",
        "firstline infer digits scan.png --url https://127.0.0.1:8070 --key-file ops.key",
        code=1,
    ),
    Command("a folder without files", "firstline infer models/digits nothing", {"nothing/.keep": ""}),
    Command("another input", "firstline infer models/classification row.json", {"row.json": '{"y": [1, 2]}'}, 1),
    Command("a number too large", "firstline infer models/classification row.json", {"row.json": "[1e400, 2]"}, 1),
    Command("a name without its folder", "firstline infer digts scan.png"),
)

_GATEWAYS = (
    Command("no gateway", "firstline device list"),
    Command("no key", _LIST),
    Command("no such key file", f"{_LIST} --key-file op.key --ca ca.pem"),
    Command("an empty key file", f"{_LIST} --key-file empty --ca ca.pem"),
    Command("a folder instead of the key", f"{_LIST} --key-file heldout --ca ca.pem"),
    Command("a certificate instead of the key", f"{_LIST} --key-file ca.pem --ca ca.pem"),
    Command(
        "a key that the gateway does not know",
        f"{_LIST} --key-file unknown.key --ca ca.pem",
        {"unknown.key": "firstline_unknown"},
        1,
    ),
    Command("a revoked key", f"{_LIST} --key-file retired.key --ca ca.pem", code=1),
    Command("a key without the scope", f"{_LIST} --key-file shop.key --ca ca.pem", code=1),
    Command("a device's key", f"{_LIST} --key-file cam.key --ca ca.pem", code=1),
    Command("no CA", f"{_LIST} --key-file ops.key", code=1),
    Command("another CA", f"{_LIST} --key-file ops.key --ca other-ca.pem", code=1),
    Command("no such CA file", f"{_LIST} --key-file ops.key --ca cert.pem"),
    Command("a key instead of the CA", f"{_LIST} --key-file ops.key --ca ops.key"),
    Command("http for a gateway with TLS", f"{_AT} http://gateway:8080 --key-file ops.key", code=1),
    Command("a gateway that is not there", f"{_AT} http://127.0.0.1:9 --key-file ops.key", code=1),
    Command("an address without http", f"{_AT} gateway:8080 --key-file ops.key"),
    Command("another protocol", f"{_AT} ftp://gateway:8080 --key-file ops.key"),
    Command("a port out of range", f"{_AT} https://127.0.0.1:99999 --key-file ops.key"),
    Command("the agent instead of the gateway", f"{_AT} {_TIER}", code=1),
    Command("an unknown context", "firstline context use factroy"),
    Command("a damaged file of contexts", "firstline context list", {_CONTEXTS: "{"}),
    Command("a key file that is not UTF-8", f"{_LIST} --key-file latin1.txt --ca ca.pem"),
    Command("a link to itself instead of the key", f"{_LIST} --key-file loop --ca ca.pem"),
    Command("a folder instead of the CA", f"{_LIST} --key-file ops.key --ca heldout"),
    Command(
        "a user and a password in the address", f"{_AT} https://ops:secret@gateway:8080 --key-file ops.key --ca ca.pem"
    ),
    Command("a host that does not exist", f"{_AT} https://gateway.invalid:8080 --key-file ops.key", code=1),
    Command(
        "a key of several words",
        "firstline device list",
        environ={"FIRSTLINE_GATEWAY": "https://gateway:8080", "FIRSTLINE_TOKEN": "a b"},
    ),
    Command("a context without a gateway", "firstline context create factory"),
    Command(
        "a misspelt context",
        "firstline context use factroy",
        {_CONTEXTS: '{"contexts": {"factory": {"gateway": "https://gateway:8080"}}}'},
    ),
    Command(
        "a context whose key file is gone",
        "firstline device list",
        {
            _CONTEXTS: '{"current": "factory", "contexts": {"factory": {"gateway": '
            '"https://gateway:8080", "key_file": "gone.key"}}}'
        },
    ),
)

_FLEETS = (
    _fleet("an unknown device", "firstline device get press-1"),
    _fleet("an invalid tag", "firstline device tag press-9 site", 2),
    _fleet("an invalid selector", "firstline device list --selector 'site berlin'"),
    _fleet("an invalid name of a device", "firstline device enroll 'press 7'", 2),
    _fleet("no device", "firstline device enroll", 2),
    _fleet(
        "a list of devices without a column name",
        "firstline device enroll --csv devices.csv",
        2,
        devices_csv="device\npress-7\n",
    ),
    _fleet("a token for a year", "firstline device enroll press-7 --valid-days 365", 2),
    _fleet("revoke an unknown device", "firstline device revoke press-1"),
    _fleet("an unknown rollout", f"firstline rollout watch {_ID}"),
    _fleet("a word instead of a rollout's id", "firstline rollout promote latest"),
    _fleet("a bundle that was not pushed", "firstline rollout create digits 7 --stages 1,10,100"),
    _fleet("stages that fall", "firstline rollout create digits 1 --stages 10,1", 2),
    _fleet("stages over 100", "firstline rollout create digits 1 --stages 10,200", 2),
    _fleet("a soak without a unit", "firstline rollout create digits 1 --soak 90", 2),
    _fleet("an unknown model", "firstline model get digit 1"),
    _fleet("an unknown alias", "firstline model get digits champion"),
    _fleet("an alias of an unknown version", "firstline alias set digits champion 9"),
    _fleet("signing keys that are not there", "firstline model push models/digits --keys nokeys", 2),
    _fleet("a folder that is not a bundle", "firstline model push heldout", 2),
    _fleet("a configuration with a misspelt key", _PUSH, 2, c_toml=f"{_CONFIGURATION}[policy]\nmin_treshold = 0.9\n"),
    _fleet("a configuration with a setting that is not remote", _PUSH, 2, c_toml=f"{_CONFIGURATION}[api]\nport = 1\n"),
    _fleet("a brake without a number", "firstline fleet brake --per-hour some --reason test", 2),
    _fleet("an export since a time that is not one", "firstline audit export --since yesterday", 2),
    _fleet("an export as an argument", "firstline audit verify notes.txt", 2),
    _fleet("a misspelt device", "firstline device decommission pres-9"),
    _fleet("a list of devices that is not there", "firstline device enroll --csv devices.csv", 2),
    _fleet("a folder instead of a list of devices", "firstline device enroll --csv heldout", 2),
    _fleet("a list of devices that is not UTF-8", "firstline device enroll --csv latin1.txt", 2),
    _fleet("a definition of a rollout that is not there", _ROLL_OUT, 2),
    _fleet("a definition of a rollout that is not TOML", _ROLL_OUT, 2, rollout_toml="stages: 1\n"),
    _fleet("a webhook with a slash in its name", "firstline webhook test a/b", 2),
    _fleet("a webhook without a name", "firstline webhook test ''", 2),
    _fleet("an unknown webhook", "firstline webhook test operation"),
    _fleet("an alias with spaces", "firstline alias set digits 'best one' 1"),
    _fleet("an alias that is not there", "firstline alias delete digits champion"),
    _fleet("a brake below 0", "firstline fleet brake --per-hour -5 --reason test", 2),
    _fleet("an empty configuration", "firstline config push empty", 2),
    _fleet("a head of an export that is not there", "firstline audit verify --file notes.txt", 2),
    _fleet("accounts of the console that are not TOML", "firstline console --accounts notes.txt", 2),
)

_DEVICE = (
    Command("no such configuration", "edge-agent run --config agent.toml"),
    _edge("a misspelt section", "[apis]\nport = 8070\n"),
    _edge("a misspelt key", "[api]\nprot = 8070\n"),
    _edge("a port out of range", "[api]\nport = 99999\n"),
    _edge("a port in words", '[api]\nport = "http"\n'),
    _edge("a key twice", "[api]\nport = 8070\nport = 8071\n"),
    _edge("not TOML", "api.port: 8070\n"),
    _edge("a value without quotes", "[log]\nlevel = debug\n"),
    _edge("a value that is not in the list", '[log]\nlevel = "verbose"\n'),
    _edge("a negative number", "[outbox]\nlimit_items = -1\n"),
    _edge("a share in percent", "[hedge]\nshare = 5\n"),
    _edge("text instead of a list", '[models]\ndirectories = "models"\n'),
    _edge("others can reach an agent without tokens", '[api]\nhost = "0.0.0.0"\n'),
    _edge("a link without an address", '[[links]]\nkind = "http"\n'),
    _edge("a link of an unknown kind", '[[links]]\nkind = "https"\nurl = "https://gateway:8080"\n'),
    _edge("a link without http", f'{_LINK}"gateway:8080"\n'),
    _edge("a link to another machine without TLS", f'{_LINK}"http://gateway:8080"\n'),
    _edge("a broker without a host", '[[links]]\nkind = "mqtt"\n'),
    _edge("a policy without a price", '[policy]\nkind = "value"\n'),
    _edge("a token file without names", '[api]\nhost = "0.0.0.0"\ntoken_file = "notes.txt"\n', _RUN),
    _edge("no such token file", '[api]\ntoken_file = "tokens"\n', _RUN),
    _edge("no such token file of a link", f'{_LINK}"http://127.0.0.1:9"\ntoken_file = "tokens"\n', _RUN),
    _edge("no such authorities of a link", f'{_LINK}"https://127.0.0.1:9"\ntls_ca_file = "cert.pem"\n', _RUN),
    Command("an unknown setting on the command line", "edge-agent run --set api.prot=1"),
    Command("an unknown section on the command line", "edge-agent run --set ap.port=1"),
    Command("a wrong value in the environment", "edge-agent run", environ={"FIRSTLINE_EDGE_API__PORT": "http"}),
    Command("no agent", "edge-agent status --url http://127.0.0.1:9", code=1),
    Command("an address that is not one", "edge-agent status --url 127.0.0.1:8070", code=1),
    Command("a configuration that exists", "edge-agent init --config edge-agent.toml", {"edge-agent.toml": ""}),
    Command("a join token that is not one", f"{_JOIN} notes.txt {_STATED}"),
    Command("no such join token", f"{_JOIN} press-8.token {_STATED}"),
    Command("a gateway's address without TLS, to join", f"edge-agent join http://gateway:8080 {_TOKEN}"),
    Command("a gateway that is not there to join", f"edge-agent join https://127.0.0.1:9 {_TOKEN}", code=1),
    Command("an unknown request", f"edge-agent explain {_ID} {_STATED}", {"state/decisions.jsonl": ""}, code=1),
    Command("a folder that no agent has used", f"edge-agent explain {_ID} --set agent.state_dir=unused", code=1),
    Command("an unknown model in a plan", f"edge-agent plan explain digit {_PLAN}"),
    Command("no such profile", f"edge-agent plan explain digits --profile p.json {_PLAN}"),
    Command("a folder instead of the configuration", "edge-agent run --config heldout"),
    Command("a link to itself instead of the configuration", "edge-agent run --config loop"),
    Command("a model instead of the configuration", "edge-agent run --config edge.onnx"),
    _edge("a misspelt level", '[log]\nlevel = "inof"\n'),
    _edge("an open quote", '[api]\nport = "8070\n'),
    _edge("a list instead of a section", "[[api]]\nport = 1\n"),
    _edge("a section instead of a list", '[links]\nkind = "http"\n'),
    _edge("a name with spaces", '[agent]\ndevice_id = "press 9"\n'),
    _edge("a socket with a long path", f'[api]\nsocket = "{"a" * 120}"\n'),
    _edge("a port of a link out of range", f'{_LINK}"https://gateway:99999"\n'),
    _edge("a password in the address of a link", f'{_LINK}"https://me:secret@gateway"\n'),
    _edge("every web page may use the models", '[api]\ncors_origins = ["*"]\n'),
    _edge("an empty battery that is fuller than a full one", "[adaptation]\nbattery_empty = 0.9\nbattery_full = 0.5\n"),
    _edge("a section that the fleet cannot set", '[fleet]\nlocked = ["polcy"]\n'),
    _edge("a collector without http", '[tracing]\nendpoint = "collector:4318"\n'),
    _edge("a state directory that is a file", f'{_STATE}"notes.txt"\n', _RUN),
    _edge("no such authorities of a broker", f'{_BROKER}tls_ca_file = "cert.pem"\n', _RUN),
    _edge(
        "a certificate for a broker without its key",
        f'{_BROKER}tls_ca_file = "ca.pem"\ntls_certificate_file = "ca.pem"\ntls_key_file = "notes.txt"\n',
        _RUN,
    ),
    _edge("no such password file of a broker", f'{_BROKER}password_file = "pw"\n', _RUN),
    Command(
        "a host that does not exist",
        "edge-agent run --config edge-agent.toml --set api.host=press.invalid",
        {"edge-agent.toml": '[api]\ntoken_file = "agent.tokens"\n[agent]\nstate_dir = "hosts"\n'},
    ),
    Command("a list on the command line without JSON", "edge-agent run --set models.directories=models"),
    Command("a misspelt setting in the environment", "edge-agent run", environ={"FIRSTLINE_EDGE_API__PRT": "1"}),
    Command("a folder instead of the join token", f"{_JOIN} heldout"),
    Command("a port out of range to join", "edge-agent join https://gateway:99999 --token-file press-9.token"),
    Command("a proxy without http", f"{_JOIN} press-9.token --proxy proxy {_STATED}"),
    Command("a model to measure that is not there", f"edge-agent profile create m {_STATED}"),
    _edge("a proxy of another kind", f'{_LINK}"https://gateway:8080"\nproxy = "socks5://proxy:1080"\n'),
    Command("a configuration in a folder that is not there", "edge-agent init --config device/edge-agent.toml"),
)

_CLOUD = (
    Command("no such configuration", "firstline-gateway check --config gatway.toml"),
    _gateway("a misspelt key", "[api]\nprot = 8080\n"),
    _gateway("a misspelt section", "[apii]\nport = 8080\n"),
    _gateway("a port out of range", "[api]\nport = 99999\n"),
    _gateway("not TOML", "[api\nport = 8080\n"),
    _gateway("a folder of models that is not there", '[models]\ndirectory = "model"\n'),
    _gateway("plain HTTP for the network", f'[api]\nhost = "0.0.0.0"\n{_MODELS}'),
    _gateway("TLS without names", f"[tls]\nenabled = true\n{_MODELS}"),
    _gateway("a certificate without its key", f'[tls]\nenabled = true\ncertificate_file = "ca.pem"\n{_MODELS}'),
    _gateway("an address instead of a host", f'[tls]\nenabled = true\nhosts = ["https://gateway"]\n{_MODELS}'),
    _gateway("an unknown database", f'[store]\nurl = "mysql://db/firstline"\n{_MODELS}'),
    _gateway(
        "a database's address without its driver", f'[store]\nurl = "postgresql://me:secret@db/firstline"\n{_MODELS}'
    ),
    _gateway("an unknown engine", f'[execution]\nengine = "triton"\n{_MODELS}'),
    _gateway("servers without an address", f'[execution]\nengine = "oip"\n{_MODELS}'),
    _gateway("an executor that is not there", '[models]\ndirectory = "models"\nexecutors_of = { digits = ["gpu"] }\n'),
    _gateway(
        "no password file of the broker", f'[mqtt]\nenabled = true\nusername = "me"\npassword_file = "pw"\n{_MODELS}'
    ),
    Command("a key without a name", "firstline-gateway key create"),
    Command("an unknown key to revoke", "firstline-gateway key revoke shopp --config g.toml", _KEYS),
    Command("a configuration that exists", "firstline-gateway init --config gateway.toml", {"gateway.toml": ""}),
    Command("a backup that is not one", "firstline-gateway restore notes.txt --config g.toml", _KEYS),
    Command("no certificate authority yet", "firstline-gateway ca get --config g.toml", _KEYS),
    Command("a folder instead of the configuration", "firstline-gateway check --config heldout"),
    _gateway("a misspelt choice", '[auth]\nmode = "of"\n'),
    _gateway("no keys on a network", '[auth]\nmode = "off"\n[api]\nhost = "0.0.0.0"\n'),
    _gateway("a broker without a host", '[mqtt]\nenabled = true\nhost = ""\n'),
    _gateway("no such authorities of the broker", f'{_MODELS}[mqtt]\nenabled = true\ntls_ca_file = "cert.pem"\n'),
    _gateway("a file instead of the models", '[models]\ndirectory = "notes.txt"\n'),
    _gateway("a file instead of the registry's files", f'{_MODELS}[registry]\nblobs = "notes.txt"\n'),
    _gateway("a file instead of the identities", f'{_MODELS}[identity]\ndirectory = "notes.txt/identity"\n'),
    _gateway("a database that is not one", f'{_MODELS}[store]\nurl = "sqlite:///notes.txt"\n'),
    _gateway("a password in the address", '[store]\nurl = "postgresql+psycopg://me:secret@db/firstline"\n'),
    _gateway(
        "an address of a proxy that is not one",
        f'{_MODELS}[auth]\ntrusted_proxies = ["lb"]\nproxy_certificate_header = "X"\n',
    ),
    _gateway("an executor without a server", '[executors.gpu]\nengine = "oip"\n'),
    _gateway(
        "a misspelt executor", f'{_MODELS}executors_of = {{ digits = ["gup"] }}\n[executors.gpu]\nengine = "local"\n'
    ),
    _gateway("a misspelt key of an executor", '[executors.cpu]\nengine = "local"\n[executors.gpu]\nengin = "oip"\n'),
    _gateway(
        "an executor with a capital letter that has no server",
        '[executors.cpu]\nengine = "local"\n[executors.GPU]\nengine = "oip"\n',
    ),
    _gateway(
        "an executor with a dot in its name that has no server",
        '[executors.gpu]\nengine = "local"\n[executors."gpu.1"]\nengine = "oip"\n',
    ),
    Command(
        "TLS without names, in the environment",
        "firstline-gateway check --config gateway.toml",
        {"gateway.toml": _MODELS},
        environ={"FIRSTLINE_GATEWAY_TLS__ENABLED": "true"},
    ),
    _gateway("a server without http", '[execution]\nengine = "oip"\n[oip]\nendpoints = ["gpu:8000"]\n'),
    _gateway("a webhook without TLS", f'{_HOOK}url = "http://hooks.example.com"\n'),
    _gateway("a misspelt event of a webhook", f'{_EVENTS}["alarm"]\n'),
    _gateway("a webhook without a key", f'{_EVENTS}["alarms"]\n'),
    _gateway("no such key of a webhook", f'{_MODELS}{_EVENTS}["alarms"]\nsecret_file = "hook.key"\n'),
    _gateway("a webhook with a space in its name", '[webhooks."on call"]\nurl = "https://hooks.example.com"\n'),
    Command(
        "a wrong value in the environment", "firstline-gateway check", environ={"FIRSTLINE_GATEWAY_API__PORT": "http"}
    ),
    Command("a key for 0 days", "firstline-gateway key create shop --expires-days 0 --config g.toml", _KEYS),
)

_ROW = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


def _row(**changes: object) -> Mapping[str, object]:
    return {"inputs": [{**_ROW, **changes}]}


def _both(wrong: str, line: str, body: object = b"", status: int = 400, **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(wrong, ("agent", "gateway"), line, body, status, headers=named)


def _to_gateway(
    wrong: str, line: str, body: object = b"", status: int = 400, key: str = "ops", **headers: str
) -> Request:
    """A request to the gateway."""
    return Request(wrong, ("gateway",), line, body, status, key, headers)


def _digits(**fields: str) -> Any:
    sent = digits_message()
    for name, value in fields.items():
        setattr(sent, name, value)
    return sent


_V2 = "POST /v2/models/classification/infer"
_FILE = "POST /firstline/v1/models/digits/infer"
_REQUESTS = (
    _both("no JSON", _V2, "inputs"),
    _both("an empty body", _V2),
    _both("no inputs", _V2, {}),
    _both("an empty list of inputs", _V2, {"inputs": []}),
    _both("a misspelt input", _V2, _row(name="X")),
    _both("an unknown datatype", _V2, _row(datatype="float32")),
    _both("another datatype", _V2, _row(datatype="BYTES", data=["1", "2"])),
    _both("another shape", _V2, _row(shape=[1, 3], data=[1, 2, 3])),
    _both("fewer numbers than the shape has", _V2, _row(shape=[2, 2])),
    _both("a negative shape", _V2, _row(shape=[-1, 2])),
    _both("no shape", _V2, {"inputs": [{"name": "x", "datatype": "FP32", "data": [1, 2]}]}),
    _both("text for numbers", _V2, _row(data=["one", "two"])),
    _both("NaN", _V2, '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, NaN]}]}'),
    _both("a number beyond FP32", _V2, _row(data=[1, 1e99])),
    _both("an unknown output", _V2, {**_row(), "outputs": [{"name": "scores"}]}),
    _both("an unknown privacy", _V2, {**_row(), "parameters": {"privacy": "local"}}),
    _both("a timeout in words", _V2, {**_row(), "parameters": {"timeout": "2s"}}),
    _both("an unknown route", _V2, {**_row(), "parameters": {"route": "clowd"}}),
    _both("an unknown version", "POST /v2/models/classification/versions/9/infer", _row(), 404),
    _both("an unknown model", "GET /v2/models/classificaton", status=404),
    _both("a misspelt address", "GET /v2/model/classification", status=404),
    _both("another method", "GET /v2/models/classification/infer", status=405),
    _both("a binary length that is not a number", _V2, b"{}", Inference_Header_Content_Length="many"),
    _both("a binary length beyond the body", _V2, b"{}", Inference_Header_Content_Length="100"),
    _both(
        "another binary size",
        _V2,
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}1234',
        Inference_Header_Content_Length="93",
    ),
    _both("an unknown compression", _V2, b"{}", Content_Encoding="br"),
    _both("a body that is not gzip", _V2, b"{}", Content_Encoding="gzip"),
    _both("an empty file", _FILE),
    _both("a GIF", _FILE, b"GIF89a" + bytes(20)),
    _both("text", _FILE, b"hello"),
    _both("a truncated PNG", _FILE, b"\x89PNG\r\n\x1a\n" + bytes(20)),
    _both("a misspelt query parameter", f"{_FILE}?privcy=local_only", b"\x89PNG"),
    _both("a parameter of another task", f"{_FILE}?min_score=0.5", b"\x89PNG"),
    _both("a score of 50", "POST /firstline/v1/models/detection/infer?min_score=50", b"\x89PNG"),
    _both("an unknown class", "POST /firstline/v1/models/detection/infer?classes=horse", b"\x89PNG"),
    _both("an answer as an image of another type", _FILE, b"\x89PNG", 406, Accept="image/webp"),
    _both("an unknown answer", f"GET /firstline/v1/answers/{_ID}", status=404),
    _to_gateway("no key", _V2, _row(), 401, key=""),
    Request("no token", ("agent",), _V2, _row(), 401, key=""),
    _to_gateway("another scheme", _V2, _row(), 401, Authorization="Basic b3BzOm9wcw=="),
    _to_gateway("an unknown key", _V2, _row(), 401, Authorization="Bearer firstline_unknown"),
    _to_gateway("a key without the scope", "GET /fleet/v1/devices", status=403, key="shop"),
    _to_gateway("an unknown device", "GET /fleet/v1/devices/press-1", status=404),
    _to_gateway("a limit that is a word", "GET /fleet/v1/devices?limit=all"),
    _to_gateway("an unknown order", "GET /fleet/v1/devices?sort=age"),
    _to_gateway("an invalid selector", "GET /fleet/v1/devices?selector=site%20berlin"),
    _to_gateway("an unknown presence", "GET /fleet/v1/devices?presence=away"),
    _to_gateway("not JSON for a rollout", "POST /fleet/v1/rollouts", "start"),
    _to_gateway("a rollout without a bundle", "POST /fleet/v1/rollouts", {}),
    _to_gateway("a rollout with a misspelt key", "POST /fleet/v1/rollouts", {"bundel": "digits"}),
    _to_gateway("an unknown rollout", f"GET /fleet/v1/rollouts/{_ID}", status=404),
    _to_gateway("an unknown command of a rollout", f"POST /fleet/v1/rollouts/{_ID}/cancel"),
    _to_gateway("a brake of a wrong type", "PUT /fleet/v1/brake", {"escalations_per_hour": "few"}),
    _to_gateway("an invitation without names", "POST /firstline/v1/devices", {}),
    _to_gateway(
        "no certificate signing request",
        "POST /firstline/v1/enroll",
        {"device": "press-7", "secret": "x", "csr": "x"},
        key="",
    ),
    _to_gateway("an unknown contract", "GET /firstline/v1/contracts/digit", status=404),
    _to_gateway("a digest that is not one", "GET /fleet/v1/registry/blobs/abc"),
    _to_gateway("a twin of an application", "GET /fleet/v1/twin", status=403, key="shop"),
    _to_gateway("an unknown address of the fleet", "GET /fleet/v1/device", status=404),
    _both("a list instead of the body", _V2, [1]),
    _both("an input without a name", _V2, {"inputs": [{"datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}),
    _both("an input twice", _V2, {"inputs": [_ROW, _ROW]}),
    _both("a shape of text", _V2, _row(shape="1,2")),
    _both("a size that is not whole", _V2, _row(shape=[1.5, 2])),
    _both("an input without data", _V2, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}]}),
    _both("null for a number", _V2, _row(data=[None, 1])),
    _both("no rows", _V2, _row(shape=[0, 2], data=[])),
    _both("more rows than the shape has", _V2, _row(data=[[1, 2], [3]])),
    _both("more elements than are accepted", _V2, _row(shape=[2**31, 2]), 413),
    _both("a timeout below 0", _V2, {**_row(), "parameters": {"timeout": -1}}),
    _both("a misspelt output", _V2, {**_row(), "outputs": [{"name": "probabilites"}]}),
    _both("shared memory", _V2, {"inputs": [{**_ROW, "parameters": {"shared_memory_region": "a"}}]}),
    _both("a gzip body that ends too early", _V2, gzip.compress(b"{}", mtime=0)[:-5], Content_Encoding="gzip"),
    _both("a parameter twice", f"{_FILE}?route=edge&route=cloud", b"\x89PNG"),
    _both("a misspelt class", "POST /firstline/v1/models/detection/infer?classes=dgo", b"\x89PNG"),
    _both("a WebP image", _FILE, b"RIFF\0\0\0\0WEBPVP8 "),
    _both("a broken JPEG", _FILE, b"\xff\xd8\xff\xe0" + bytes(50)),
    _both("a form without a boundary", _FILE, b"--a--", Content_Type="multipart/form-data"),
    _both("a bundle to load that is not there", "POST /v2/repository/models/digts/load", status=404),
    _to_gateway("a limit of 0", "GET /fleet/v1/devices?limit=0"),
    _to_gateway("a misspelt parameter", "GET /fleet/v1/devices?presnce=online"),
    _to_gateway("a misspelt parameter without a key", "GET /fleet/v1/devices?presnce=online", b"", 401, ""),
    _to_gateway("a misspelt parameter of the audit log", "GET /fleet/v1/audit?actoin=rollout.start"),
    _to_gateway("metadata that the registry does not have", "GET /fleet/v1/registry/metadata/x", status=404),
    _to_gateway("a misspelt order", "GET /fleet/v1/devices?sort=nmae"),
    _to_gateway(
        "a share over 1", "POST /fleet/v1/rollouts", {"bundle": "digits", "version": 1, "stages": [{"share": 2}]}
    ),
    _to_gateway("an invitation of a name with spaces", "POST /firstline/v1/devices", {"devices": ["press 7"]}),
)

_CALLS = (
    Call("no key", "ModelInfer", digits_message(), key=""),
    Call("an unknown model", "ModelInfer model_name: 'digit'", _digits(model_name="digit")),
    Call("an unknown version", "ModelInfer model_version: '9'", digits_message(model_version="9")),
    Call("metadata of an unknown model", "ModelMetadata name: 'digit'", message("ModelMetadataRequest")(name="digit")),
    Call("no inputs", "ModelInfer inputs: []", message("ModelInferRequest")(model_name="digits")),
    Call("bytes that are not a message", "ModelInfer (4 bytes)", b"\xff\xff\xff\xff"),
)

AREAS: Mapping[str, Sequence[Case]] = {
    "Command lines": _PROGRAMS,
    "Recipes, models and bundles": _BUNDLES,
    "Data": _DATA,
    "Pairing, certificates, compression, profiles": _WORKBENCH,
    "Inference on files": _INFER,
    "Gateways, keys and certificates": _GATEWAYS,
    "Fleet": _FLEETS,
    "Device": _DEVICE,
    "Gateway": _CLOUD,
    "Requests": _REQUESTS,
    "gRPC": _CALLS,
}
