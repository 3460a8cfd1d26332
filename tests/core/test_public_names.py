"""The public names: few, documented, and all there."""

import inspect

import assay


def test_the_public_names_are_exactly_these():
    words = """
        Adjacency AssayError Budget BudgetSpentError Callback ConfigError DataError Optimizer Plan Predictions
        PrivateStep Progress Result Settings TrainedModel Training UnsupportedModelError at_least at_most
        attacks audit choose data export federated fit inference integrations load loggers methods models
        presets report resume runs studies train
    """
    assert assay.__all__ == words.split()


def test_every_public_name_exists_and_is_documented():
    for name in assay.__all__:
        thing = getattr(assay, name)
        assert inspect.getdoc(thing), name
        home = thing.__name__ if inspect.ismodule(thing) else thing.__module__
        assert home.startswith("assay"), name


def test_dir_lists_exactly_the_public_names_and_the_version():
    assert dir(assay) == sorted([*assay.__all__, "__version__"])
