"""Private training inside other people's loops.

`assay.integrations.transformers.PrivateTrainer` takes the place of Hugging Face's `Trainer`, and
`assay.integrations.lightning.PrivateCallback` makes a `Trainer` of Lightning train privately. Each module needs its own
package, which is an extra of Assay: `transformers` or `lightning`.
"""
