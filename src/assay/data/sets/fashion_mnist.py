"""Fashion-MNIST."""

from assay.data.formats.idx import ink_data_set
from assay.data.origins import Package, Site

SUMS = """
c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888  47_040_016  train-images-idx3-ubyte
3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84  26_421_880  train-images-idx3-ubyte.gz
bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9      60_008  train-labels-idx1-ubyte
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845      29_515  train-labels-idx1-ubyte.gz
5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b   7_840_016  t10k-images-idx3-ubyte
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073   4_422_102  t10k-images-idx3-ubyte.gz
0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34      10_008  t10k-labels-idx1-ubyte
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5       5_148  t10k-labels-idx1-ubyte.gz
"""

DATASET = ink_data_set(
    "fashion-mnist",
    "articles of clothing in grey (Xiao, Rasul, Vollgraf 2017)",
    SUMS,
    folders=("fashion-mnist", "fashion-mnist/raw", "FashionMNIST/raw"),
    origins=(
        Site(base="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
        Package(
            client="apt",
            name="dataset-fashion-mnist",
            version="",
            folder="usr/share/datasets/fashion-mnist/",
            carries="gzipped files",
        ),
    ),
)
