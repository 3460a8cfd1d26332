"""Numbers that fixed keys gave in version 0.1.0. A run that is resumed, or repeated with its seed, must get the same.

Bits, uniform and whole numbers are equal on every machine. Normal and Laplace numbers need logarithms and cosines,
whose last bits depend on the processor: they are compared to six digits.
"""

import hashlib

import pytest
import torch

from assay.randomness.generators import Encrypted, Hashed
from assay.randomness.rounded import rounded_normal
from assay.randomness.streams import Blocks, Seeded

STREAMS = {
    "seeded": lambda: Seeded(3).stream("noise", 5),
    "blocks": lambda: Blocks(Seeded(3), "noise").at(70),
    "aes": lambda: Encrypted(bytes(range(48)), Seeded(0).stream("elsewhere", 0)),
    "shake": lambda: Hashed(hashlib.shake_256(b"fixed")),
}
EXACT = {  # two words, two uniform numbers, three below 1000, three rounded normal numbers of scale 1000.5
    "seeded": (
        [174022117986293644, 3391444453727197352],
        [0.45407320895445724, 0.20104244845233465],
        [985, 607, 790],
        [220, -1614, -377],
    ),
    "blocks": (
        [8116299578735440211, 5579198239268212760],
        [0.7559727251079371, 0.060869706029723414],
        [730, 128, 166],
        [1070, 415, -343],
    ),
    "aes": (
        [2022273799714743905, -3125424793755991780],
        [0.3213373901180059, 0.6079277512490285],
        [916, 821, 595],
        [-136, -249, -1322],
    ),
    "shake": (
        [-4451396298124701283, 8036151946768484347],
        [0.251688518900795, 0.25767517807597884],
        [675, 494, 734],
        [-88, -1666, -1966],
    ),
}
ROUNDED = {  # three normal numbers in float32, three in float64, two Laplace numbers; the last of 40 in float32
    "seeded": (
        [-0.5225833058357239, 1.1044836044311523, -0.6422937512397766],
        [0.19066640043416272, 1.3630056951420657, -0.12279358783485692],
        [-1.379112738527813, -0.21383184344355533],
        -0.3952001631259918,
    ),
    "blocks": (
        [-0.5456358194351196, 0.01378506887704134, 0.2526591420173645],
        [0.08993110853493948, -0.1836092999637872, -0.44474069283051043],
        [1.3158714708172174, -0.47408525193758455],
        0.857361912727356,
    ),
    "aes": (
        [-0.33123502135276794, 0.48241519927978516, -0.1767938733100891],
        [-0.4639622664998918, 1.237624023355576, 0.48798436394762595],
        [0.6339209677578201, 1.3879536828012025],
        -1.138205885887146,
    ),
    "shake": (
        [0.6473914384841919, -0.1620311290025711, -0.6451228260993958],
        [-0.6691856831698856, -0.650529339867416, 0.5452151058412152],
        [-1.3018229058579982, 0.788939183809592],
        0.6502786874771118,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_bits_and_whole_numbers(name):
    stream = STREAMS[name]()
    words, uniform, integers, rounded = EXACT[name]
    assert stream.words(2).tolist() == words
    assert stream.uniform(2).tolist() == uniform
    assert stream.integers(1000, 3).tolist() == integers
    assert rounded_normal(3, 1000.5, stream).tolist() == rounded


@pytest.mark.parametrize("name", STREAMS)
def test_normal_and_laplace_numbers(name):
    stream = STREAMS[name]()
    single, double, laplace, last = ROUNDED[name]
    assert stream.normal((3,), dtype=torch.float32, device="cpu").tolist() == pytest.approx(single, rel=1e-6)
    assert stream.normal((3,), dtype=torch.float64, device="cpu").tolist() == pytest.approx(double, rel=1e-6)
    assert stream.laplace((2,), dtype=torch.float64, device="cpu").tolist() == pytest.approx(laplace, rel=1e-6)
    forty = STREAMS[name]().normal((40,), dtype=torch.float32, device="cpu")
    assert float(forty[-1]) == pytest.approx(last, rel=1e-6)
