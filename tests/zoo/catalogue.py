"""Every mutant of the zoo, its twin, and what catches it: `python -m tests.zoo` prints the list."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A bug that makes ε too small, and how it is caught.

    Attributes:
        bug: What is wrong.
        twin: The same thing done right; it must be left alone.
        caught: What catches the bug.
        code: Its name in one of the modules of mutants; "" where a test has it in itself.
        test: The file and the function that shows both.
    """

    bug: str
    twin: str
    caught: str
    code: str
    test: str


def _each(caught: str, test: str, *rows: tuple[str, str, str]) -> tuple[Mutant, ...]:
    return tuple(Mutant(bug, twin, caught, code, test) for bug, twin, code in rows)


ZOO: tuple[Mutant, ...] = (
    *_each(
        "audit of one step",
        "test_one_step.py::test_the_bug_is_caught",
        ("ghost clipping that ignores C", "flat clipping", "IgnoresC"),
        ("norms without the bias", "norms of all", "ForgetsBias"),
        ("a micro-batch charged at C", "charged at 2C", "MicroBatchAtC"),
        ("each tensor clipped at C, charged as flat", "clipped at C / sqrt(layers)", "EachTensorAtC"),
        ("the sum without noise is added, too", "noise alone", "RawToo"),
        ("the generator seeded at every step", "fresh noise", "Reseeded"),
        ("noise on no rank", "noise on the leader", "NoiseOnNoRank"),
        ("noise on every rank, a fourth each", "a half each", "NoiseOnEveryRank"),
        ("each view of a record clipped by itself", "views averaged, then clipped", "Augmented"),
        ("GReDP with real-valued noise in frequencies", "complex noise", "ChargedAtSigma"),
        ("GReDP charged at sigma", "charged for the noise that is left", "ChargedAtSigma"),
        ("FedAGS sends small coordinates bare", "all of them with noise", "InsignificantBare"),
        ("the sum divided by its own deviation", "as it is", "standardised"),
        ("a clipped mean charged at its bound over the batch size", "charged for being turned round", "MeanAtRadius"),
        ("a slice that leaves the last frequency bare", "all of them", "LastCoefficientBare"),
    ),
    *_each(
        "lowest bits",
        "test_one_step.py::test_rounded_noise_shows_in_the_low_bits_and_nowhere_else",
        ("noise in half precision", "float32", "HalfPrecision"),
    ),
    *_each(
        "lowest bits",
        "test_one_step.py::test_floating_point_noise_shows_where_it_cancels_the_sum_and_exact_noise_does_not",
        ("floating-point noise", "exact noise", ""),
    ),
    *_each(
        "the norm of what a record adds",
        "test_one_step.py::test_rounding_that_a_record_chooses",
        ("norms that rounding made too small", "norms raised by what rounding may take", ""),
    ),
    *_each(
        "the norm of what a record adds",
        "test_one_step.py::test_long_sums_that_a_record_chooses",
        ("inner products summed one number after the other", "summed in blocks", ""),
    ),
    *_each(
        "what a record adds to a sum",
        "test_one_step.py::test_a_sum_of_many_losses_that_rounding_moves",
        ("the released loss is a sum in float32", "a sum of whole numbers", "SumsInFloat32"),
    ),
    *_each(
        "the norm of what a record adds",
        "test_one_step.py::test_products_of_rounded_factors",
        ("sums of factors that are rounded to bf16 after norms were taken", "products of float32", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_one_step.py::test_a_bound_so_small_that_norms_underflow",
        ("a bound so small that norms underflow", "the least bound", ""),
    ),
    *_each(
        "replayed step",
        "test_replay.py::test_the_bug_is_caught_and_its_twin_left_alone",
        ("a denominator from the number of records drawn", "a constant", "PrivateDenominator"),
        ("empty batches skipped", "a step like any other", "SkipsEmptyBatches"),
        ("batch normalisation by another name", "none", "Coupled"),
    ),
    *_each(
        "refused before the first batch",
        "test_ranks.py::test_ranks_with_a_record_in_common_are_refused",
        ("ranks that hold the records in another order", "in the same order", ""),
        ("one half of the records on both ranks", "a half on each", ""),
        ("one record of a share on another rank, too", "copies in every share", ""),
    ),
    *_each(
        "canaries in a whole run",
        "test_whole_runs.py::test_batches_in_a_fixed_order_charged_as_poisson",
        ("one order for all epochs, charged as Poisson", "Poisson sampling", ""),
    ),
    *_each(
        "refused on the first batch",
        "test_refusals.py::test_a_model_that_mixes_is_refused_every_time",
        ("missing values filled by the batch's mean", "by a constant", "FilledByMean"),
        ("the middle of a batch centred", "each record centred", "MiddleCentred"),
    ),
    *_each(
        "refused on the first batch",
        "test_refusals.py::test_a_ranking_loss_is_refused_every_time",
        ("a loss that ranks pairs of records", "a loss per record", "ranking"),
    ),
    *_each(
        "refused before anything runs",
        "test_before_the_model.py::test_a_collate_fn_that_mixes_records_is_refused_every_time",
        ("a collate_fn with mixup", "one that changes each record", ""),
        ("a collate_fn that mixes now and then", "one that changes each record", ""),
        ("a collate_fn that centres by the batch's mean", "one that centres each record", ""),
        ("a collate_fn that hands on a statistic of the batch", "one that pads", ""),
        ("a collate_fn that draws records again", "one that pads", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_before_the_model.py::test_a_data_set_that_mixes_what_it_fetches_together_is_refused",
        ("__getitems__ that centres what it fetches", "it fetches each by itself", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_before_the_model.py::test_padding_that_enters_the_losses_is_refused",
        ("a mean over padding that the longest record decides", "a mean over the record's own words", ""),
        ("a maximum over padding", "padding of one length for all records", ""),
        ("the last position, behind the padding", "the last word", ""),
        ("positions that are counted from padding on the left", "padding on the right", ""),
    ),
    *_each(
        "refused at the next step",
        "test_loops.py::test_running_statistics_that_a_loop_computes_between_two_steps",
        ("BatchNorm's statistics computed from the records between two steps", "left as they were", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_before_the_model.py::test_a_data_set_that_remembers_the_record_before",
        ("a data set that adds the record before", "one that keeps what each record was", ""),
        ("a data set that gives the record before", "one that changes each record in place", ""),
    ),
    *_each(
        "refused on the second batch",
        "test_before_the_model.py::test_a_loop_that_writes_into_its_data_set",
        ("a loop that centres its data set by a batch", "one that changed it before", ""),
    ),
    *_each(
        "refused on the first batch",
        "test_before_the_model.py::test_a_loop_that_mixes_records_is_refused_every_time",
        ("a loop with mixup", "a loop that changes each record", ""),
        ("a loop that centres by the batch's mean", "a loop that centres each record", ""),
        ("a loop that draws records again", "a loop that puts them in another order", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_before_the_model.py::test_a_loop_that_mixes_targets_is_refused",
        ("a loop that mixes targets", "a loop that leaves them", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_a_loop_that_mixes_records_around_the_model_is_refused_every_time",
        ("a loop with class weights by the batch's counts", "weights that are constants", ""),
        ("a loop that weighs each record by the batch's counts", "weights that are constants", ""),
        ("a loop that divides by a number taken out of torch", "figures that are only shown", ""),
        ("a loop with classes in another order", "records in another order", ""),
        ("a loop that mixes losses of several classes", "soft targets of a teacher", ""),
        ("a loop that smooths classes by the batch", "soft targets of a teacher", ""),
        ("a loop that weighs losses by their rank", "records sorted by their content", ""),
        ("a loop that divides losses by the largest", "records sorted by their content", ""),
        ("a loop that divides losses by their median", "records sorted by their content", ""),
        ("a loop that normalises by the batch without gradients", "a teacher without statistics", ""),
        ("a loop with a memory bank", "a buffer that is filled again", ""),
        ("a loop that divides by a running mean of losses", "a total that is only shown", ""),
        ("a loop that divides losses by their number", "by the number of columns", ""),
        ("a loop with random losses divided by their number", "figures that are only shown", ""),
        ("a loop on records that nobody drew", "on those of the batch", ""),
        ("a loop that scales gradients by the mean loss, and no loss", "by the record's own loss", ""),
        ("a loop that scales the outputs' gradients by the batch", "by the record's own loss", ""),
        ("an autograd function that scales the gradients of losses by the batch", "by the record's own loss", ""),
        ("a large constant in all losses beside the batch's counts", "weights that are constants", ""),
        ("a large constant in all losses beside a running mean of them", "a total that is only shown", ""),
        ("losses by a gradient of the same batch, as MAML has them", "adversarial examples", ""),
        ("a hook on the losses that scales gradients by the batch", "a hook that looks", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_loops.py::test_a_loss_that_mixes_gradients_alone",
        ("a loss of fit whose autograd function scales gradients by the batch", "by the record's own loss", ""),
        ("a loss of fit that scales gradients by the mean loss, and no loss", "by the record's own loss", ""),
        ("a loss of fit with weights by the batch's counts, hidden by a constant", "by the record's own loss", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_words_that_the_loop_mixes_are_refused_and_masked_words_are_not",
        ("a loop that mixes words", "a loop that masks words", ""),
    ),
    *_each(
        "refused on a random batch",
        "test_loops.py::test_mixing_that_begins_after_a_warm_up_is_found_on_a_random_batch",
        ("a loop that mixes after a warm-up", "a loop that leaves them", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_what_a_loop_keeps_after_its_step",
        ("a loop with a queue that is filled after the step", "a total that is only shown", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_weights_that_a_loop_trains_by_itself",
        ("a loop that trains an encoder on the records without noise", "on public records", ""),
        ("a generator that matches the mean of the records", "one that learns from the discriminator", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_a_backward_pass_of_the_loop_s_own",
        ("a loop that calls torch.autograd.backward on the batch", "on the weights alone", ""),
        ("a loop that calls backward for some weights", "on the weights alone", ""),
        ("a loop that takes torch.autograd.grad of the batch", "on the weights alone", ""),
        ("a loop that takes torch.func.grad of the batch", "on the weights alone", ""),
        ("a loop that takes torch.autograd.functional.vjp of the batch", "on the weights alone", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_a_copy_that_the_loop_trains_and_loads_back",
        ("a copy of the model that is trained without noise and loaded back", "trained by what is released", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_weights_that_the_loop_moves_for_a_moment",
        ("weights moved by a raw gradient while the model is called", "by what was released", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_a_number_that_the_loop_puts_into_its_model",
        ("a loop that sets its model's temperature by the batch", "a constant", ""),
        ("a loop that sets it by a number taken out of torch", "a constant", ""),
        ("a loop that sets it by the batch before", "a constant", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_a_learning_rate_that_follows_the_loss",
        ("a learning rate that is the loss", "the norm of what was released", ""),
        ("a learning rate that is the loss, taken out of torch", "the norm of what was released", ""),
    ),
    *_each(
        "refused on the next batch",
        "test_loops.py::test_a_hook_that_the_model_gets_later",
        ("a hook that scales outputs by the batch, from some step on", "by a constant", ""),
        ("a hook that scales gradients by the batch, from some step on", "by a constant", ""),
        ("a hook on every module, from some step on", "by a constant", ""),
    ),
    *_each(
        "refused from then on",
        "test_loops.py::test_a_refusal_that_the_loop_catches",
        ("a loop that catches what is said about its data set, and goes on", "an error of its own", ""),
        ("a loop that catches what is said about its weights, and goes on", "an error of its own", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_batches_of_another_step_are_records_of_an_earlier_batch",
        ("a loop that scales losses by the batch of another step", "each step has its own", ""),
    ),
    *_each(
        "refused on the first batches",
        "test_loops.py::test_a_loop_that_writes_records_into_its_model_is_refused",
        *(
            (f"a loop that writes records into {where}", "what is released", "")
            for where in ("a buffer", "a buffer's data", "a new buffer", "the weights", "the gradients")
        ),
    ),
    *_each(
        "what it releases",
        "test_loops.py::test_no_gradient_reaches_a_tensor_outside_the_model",
        ("a gradient without noise for a tensor outside the model", "no gradient", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_loops.py::test_steps_that_no_ledger_holds_are_not_taken_for_granted",
        ("a step that goes on without the ledger of the steps before", "with it", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_loops.py::test_a_record_that_a_data_set_holds_twice_is_refused",
        ("a data set that holds a record twice", "every record once", ""),
    ),
    *_each(
        "refused on the batch",
        "test_loops.py::test_a_part_that_counts_twice_on_a_batch_that_nobody_looks_at",
        ("a loop that gives the model an earlier part later in the run", "the part it was given", ""),
    ),
    *_each(
        "refused on the first batch",
        "test_before_the_model.py::test_rows_of_persons_must_stay_in_their_order",
        ("rows of persons in another order", "rows in their order", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_refusals.py::test_an_optimizer_fused_into_the_backward_pass_is_refused_before_anything_runs",
        ("an optimizer fused into the backward pass", "optimizer.step() after it", ""),
    ),
    *_each(
        "refused on the first batch",
        "test_refusals.py::test_what_the_backward_pass_keeps_is_refused",
        *(
            (f"a backward pass that writes {where}", "it reads and keeps nothing", "KeepsGradients")
            for where in ("a buffer", "a buffer's data", "a frozen parameter", "a trained parameter", "an attribute")
        ),
    ),
    *_each(
        "refused when it begins",
        "test_refusals.py::test_what_begins_after_the_first_batch_is_refused_at_once",
        ("an observer that is switched on later", "a counter", "Begins"),
        ("extra state that is written later", "a counter", "Begins"),
        ("an attribute for eval mode, written later", "a counter", "Begins"),
        ("batch statistics that begin later", "a counter", "Begins"),
    ),
    *_each(
        "refused when it begins",
        "test_refusals.py::test_batchnorm_that_is_put_in_later_is_refused",
        ("BatchNorm put in later", "the model as it was", ""),
    ),
    *_each(
        "refused when it begins",
        "test_refusals.py::test_parts_that_are_called_one_by_one_later_are_refused",
        ("a model called in parts", "called as a whole", ""),
    ),
    *_each(
        "refused",
        "test_models.py::test_the_bug_is_refused",
        ("a forward pass that fills a buffer", "it counts calls", "Keeps"),
        ("a buffer written by one record at a time", "it counts calls", "Keeps"),
        ("a parameter filled in from the first batch", "a constant", "FillsItselfIn"),
        ("a buffer filled in from the first batch", "a constant", "FillsItselfIn"),
        ("an attribute filled in from the first batch", "a constant", "FillsItselfIn"),
        ("a model that divides by the size of its batch", "by a constant", "DividesByBatch"),
        ("a backward pass that scales by the size of the batch", "by a constant", "ScalesBackward"),
        ("mixing before outputs with the records second", "by a constant", "RecordsSecond"),
        ("mixing before a head that begins at zero", "each record by itself", "behind_zero"),
        ("a frozen table with max_norm", "without it", "Table"),
        ("a loss that remembers", "one that does not", "Remembers"),
        ("a loss that draws random numbers which are known", "from secret states", "Draws"),
        ("a random loss weighted by the classes of its batch", "by constants", "DrawsAndMixes"),
        ("a random loss divided by the size of its batch", "by a constant", "DrawsAndAverages"),
        ("batch statistics of an input that is not a tensor", "a tensor, no statistics", "Opaque"),
        ("batch statistics behind an output that is not a tensor", "a tensor, no statistics", "Opaque"),
        ("an argument that all records share, later", "one for each record", "share"),
        ("rows folded into the batch, with the row before added", "each row alone", "Folded"),
        ("rows folded into the batch, shifted by one", "shifted, and shifted back", "Shifted"),
        ("a parameter times the mean of the batch", "times each record", "Token"),
        ("a loss divided by the size of its batch", "by a constant", "Averaged"),
        ("a trained tensor outside the model", "a constant", "Outside"),
        ("BatchNorm that begins to train", "it stays in eval mode", "thaw"),
        ("a layer that is added later", "the model as it was", "add_layer"),
    ),
    *_each(
        "what it releases",
        "test_state.py::test_noise_that_is_used_again_after_a_draw_failed",
        ("noise used again after a draw failed", "drawn first, then assigned", "AdvancesFirst"),
    ),
    *_each(
        "what it releases",
        "test_state.py::test_a_step_that_goes_on_after_an_exception",
        ("a step that goes on after an exception", "it ends", "GoesOnAfterErrors"),
    ),
    *_each(
        "what it releases",
        "test_state.py::test_one_source_in_two_steps",
        ("one source of random numbers in two steps", "a nonce for each", "SharedSource"),
    ),
    *_each(
        "what it releases",
        "test_state.py::test_one_key_in_two_processes",
        ("one key in two processes", "another key after a fork", "SameKeyAfterFork"),
    ),
    *_each(
        "what it releases",
        "test_state.py::test_a_copy_of_a_step",
        ("a copy of a step", "it cannot be copied", "Copyable"),
    ),
    *_each(
        "what it releases",
        "test_state.py::test_two_loops_over_one_step",
        ("two loops over one step", "the older one ends", "ManyLoops"),
    ),
    *_each(
        "what it releases",
        "test_state.py::test_masks_that_the_script_fixes",
        ("dropout masks that the script fixes", "secret masks", "SeedsOnce"),
    ),
    *_each(
        "what it releases",
        "test_spending.py::test_a_batch_whose_loop_was_left_in_the_middle",
        ("a batch whose loop was left counts again", "each record once", "CountsAgain"),
    ),
    *_each(
        "ledger",
        "test_ledgers.py::test_the_bug_shows_less_than_was_spent",
        ("a flipped bit is believed", "refused by its digest", "BelievesItsLines"),
        ("a ledger that was replaced is charged", "refused at the next charge", "ForgetsItsPath"),
        ("the noise of an entry is not the plan's", "refused", "BelievesItsNoise"),
    ),
    *_each(
        "ledger",
        "test_spending.py::test_what_the_ledger_says_is_what_was_spent",
        ("two who charge one ledger at once", "the second is refused", "Unlocked"),
        ("another seed taken for a repetition", "charged again", "RepeatsAnything"),
        ("another model under the same seed", "charged again", "ForgetsItsStart"),
    ),
    *_each(
        "ledger",
        "test_spending.py::test_a_checkpoint_that_is_ahead_of_its_ledger",
        ("a checkpoint ahead of its ledger", "refused", "BelievesItsCheckpoint"),
    ),
    *_each(
        "simulated attack",
        "test_stopping.py::test_the_bug_spends_more_than_it_states",
        ("a run stopped by hand, charged for the steps taken", "charged for its plan", "charged_so_far"),
    ),
    *_each(
        "neighbouring files",
        "test_around_a_run.py::test_records_that_go_by_position_are_caught_and_those_that_go_by_content_are_not",
        ("records split by position", "by their content", "by_position"),
    ),
    *_each(
        "what the files tell",
        "test_around_a_run.py::test_what_was_spent_before_a_run_was_replaced",
        ("--force forgets what was spent", "the ledger stays", "force_that_forgets"),
    ),
    *_each(
        "what the files tell",
        "test_around_a_run.py::test_what_was_spent_before_the_thousandth_run_of_a_directory",
        ("the thousandth ledger of a directory is replaced", "all of them stay", "ThreeDigits"),
    ),
    *_each(
        "what the files tell",
        "test_spending.py::test_times_of_a_choice",
        ("times that tell the number of trials", "one time for all files", "leaves_times"),
    ),
    *_each(
        "what the files tell",
        "test_spending.py::test_counts_of_the_clients_labels",
        ("exact counts of the clients' labels", "left out", "CountsAnyway"),
    ),
    *_each(
        "what the files tell",
        "test_spending.py::test_figures_of_an_audit_that_trained_again",
        ("figures of an audit that trained again", "kept aside", "publishes_figures"),
    ),
    *_each(
        "ledger against statement",
        "test_spending.py::test_a_statement_with_another_epsilon",
        ("a forged statement is shown", "compared with the ledger", "believes_its_statement"),
    ),
    *_each(
        "refused",
        "test_spending.py::test_a_statement_with_other_words",
        ("a statement whose prose was changed by hand is signed", "as the record gives it", ""),
    ),
    *_each(
        "shared budget",
        "test_budgets.py::test_reservations_that_race_pass_the_ceiling",
        ("reservations that race", "one at a time", "LooksBeforeItsTurn"),
    ),
    *_each(
        "shared budget",
        "test_budgets.py::test_what_is_given_back_twice_is_spent_twice",
        ("what is left is given back twice", "once", "GivesBackTwice"),
    ),
    *_each(
        "shared budget",
        "test_budgets.py::test_a_ledger_that_does_not_ask_charges_more_than_was_reserved",
        ("a ledger that charges more than was reserved", "it stops there", "ChargesBeyondItsReservation"),
    ),
    *_each(
        "shared budget",
        "test_budgets.py::test_a_loop_that_goes_on_after_its_end_is_in_no_budget",
        ("a loop that goes on after its reservation was given back", "it ends there", "NeverEnds"),
    ),
    *_each(
        "shared budget",
        "test_budgets.py::test_a_fork_that_comes_to_the_end_of_its_parents_loop",
        ("a forked child gives back what its parent has reserved", "the parent does", "NeverEnds"),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_other_records_whose_contents_were_read_before",
        ("a run on other records whose contents were read before, and are empty", "read once", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_lease_that_serves_two_runs",
        ("two runs in memory on one reservation", "with one each", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_loop_whose_plan_is_not_the_one_that_was_reserved",
        ("steps that protect rows, on the ledger of a budget of persons", "that protect persons", ""),
        ("steps that share noise, on the ledger of a budget", "with noise of their own", ""),
    ),
    *_each(
        "refused before anything runs",
        "test_budgets.py::test_persons_whose_column_is_called_as_the_unit_of_single_records",
        ("steps about persons called record, on the ledger of steps about records", "by another name", ""),
    ),
    *_each(
        "audit of an estimate",
        "test_columns.py::test_what_one_record_shows_of_a_column",
        ("bounds from the least and the largest value", "bounds from noisy counts", "exact_bounds"),
        ("levels without a threshold", "levels above one", "ListsEveryLevel"),
    ),
    *_each(
        "one record more",
        "test_heads.py::test_second_moments_that_one_record_moves_too_far",
        ("second moments of inputs that are not cut", "of inputs cut to norm 1", "uncut_blocks"),
    ),
    *_each(
        "one record more",
        "test_heads.py::test_class_means_that_one_record_moves_too_far",
        ("class sums and class sizes at a full bound each", "at shares of one bound", "FullShares"),
    ),
    *_each(
        "one record more",
        "test_heads.py::test_a_preconditioner_that_sees_the_records",
        ("a preconditioner fitted to the records for free", "to generated pictures", "FittedToRecords"),
    ),
    *_each(
        "two answers compared",
        "test_columns.py::test_a_seed_gives_another_request_other_noise",
        ("estimates with one seed share their noise", "noise by request", "same_noise_for_every_request"),
    ),
    *_each(
        "ledger",
        "test_columns.py::test_an_estimate_that_is_not_charged",
        ("columns estimated and not charged", "charged before the first step", "NeverPays"),
    ),
    *_each(
        "ledger",
        "test_columns.py::test_a_run_that_takes_the_place_of_an_estimate",
        ("a run deletes the charge of an estimate", "the charge is set aside, and counts", "ForgetsEstimates"),
    ),
    *_each(
        "notes of the budget",
        "test_budgets.py::test_a_copied_run_spends_its_reservation_once",
        ("two copies of a run share one reservation", "the copy that is behind is refused", "TellsNobody"),
    ),
    *_each(
        "plan",
        "test_columns.py::test_how_many_targets_are_usable_does_not_show",
        ("rates that count usable targets exactly", "rates that count every record", ""),
    ),
    *_each(
        "audit of one step",
        "test_persons.py::test_rows_clipped_one_by_one_and_charged_as_persons_are_caught",
        ("a person's rows clipped one by one", "clipped as one", "clip_row_by_row"),
    ),
    *_each(
        "neighbouring files",
        "test_persons.py::test_which_rows_of_others_are_kept_without_one_person",
        ("rows kept by what they draw after others", "by what they always draw", "least_rows_as_they_come"),
    ),
    *_each(
        "what the files tell",
        "test_persons.py::test_how_many_rows_persons_have_is_not_told",
        ("the number of rows of persons in their run's record", "the number of persons", "counts_rows"),
    ),
    *_each(
        "refused before anything runs",
        "test_persons.py::test_a_factory_whose_records_change_at_every_look",
        ("a factory's records read once, each drawing after the last", "records that stay what they are", ""),
    ),
    *_each(
        "what the files tell",
        "test_choices.py::test_an_entry_of_the_trial_that_won",
        ("the ε of a single trial in the history of a choice", "that of the choice", "KeepsOfTheTrial"),
        ("the time that a trial of a choice took", "left out", "KeepsOfTheTrial"),
    ),
    *_each(
        "how each trial begins",
        "test_choices.py::test_a_factory_that_returns_the_same_network",
        ("trials that train one network in turn", "each a copy", "not_copied"),
    ),
    *_each(
        "what the next client answers",
        "test_sites.py::test_what_a_client_leaves_in_the_model",
        ("a counter that goes from one client to the next", "each begins alike", "LeavesItsTurn"),
        ("a buffer that goes from one client to the next", "each begins alike", "LeavesItsTurn"),
        ("an attribute that goes from one client to the next", "each begins alike", "LeavesItsTurn"),
    ),
    *_each(
        "what the node opens",
        "test_sites.py::test_a_server_that_sends_something_else",
        ("a server that sends a plan without noise", "the node keeps to the first", "opens_what_is_sent"),
        ("a server that sends a higher ceiling", "the node keeps to the first", "opens_what_is_sent"),
        ("a server that names another place for ledgers", "the node's own folder", "opens_what_is_sent"),
    ),
    *_each(
        "ledger",
        "test_spending.py::test_an_interrupt_while_a_ceiling_is_computed",
        ("an interrupt that lifts the ceiling", "computed again", "LiftsFirst"),
    ),
    *_each(
        "ledger",
        "test_spending.py::test_an_entry_that_costs_less_than_its_plan",
        ("an entry at the first noise of a falling schedule", "refused", "FitsAsBefore"),
        ("an entry for one row of a person", "refused", "FitsAsBefore"),
        ("an entry for steps without their tests", "refused", "FitsAsBefore"),
    ),
    *_each(
        "what accepted updates show",
        "test_selecting.py::test_accepted_updates_that_are_charged_alone",
        ("steps that were taken back are not charged", "all steps are", "ChargesTheAccepted"),
    ),
    *_each(
        "batches compared",
        "test_selecting.py::test_a_test_on_records_of_the_step_s_own_batch",
        ("a step tested with the coins of its own batch", "coins of its own", "SharesCoins"),
    ),
    *_each(
        "refused on the first batch",
        "test_selecting.py::test_a_model_that_mixes_where_it_is_tested",
        ("a model that mixes records where steps are tested", "each record by itself", ""),
    ),
    *_each(
        "what the files tell",
        "test_spending.py::test_a_report_of_figures_that_nothing_covers",
        ("a report with figures that no ε covers", "left out unless asked for", "shows_everything"),
    ),
    *_each(
        "refused on the first batch",
        "test_trainers.py::test_losses_divided_by_the_words_of_the_batch_are_refused",
        ("another trainer's losses over the words of the batch", "over a record's own words", ""),
    ),
    *_each(
        "ledger",
        "test_trainers.py::test_a_checkpoint_is_continued_on_its_own_ledger_alone",
        ("another trainer's checkpoint continued on an empty ledger", "on its own", ""),
        ("another trainer's checkpoint continued on the ledger of a twin", "on its own", ""),
    ),
    *_each(
        "ledger",
        "test_trainers.py::test_a_loop_that_leaves_a_step_out_or_ends_early_is_charged_all_the_same",
        ("a step that another trainer leaves out is not charged", "charged before it is taken", ""),
    ),
    *_each(
        "refused",
        "test_trainers.py::test_a_second_trainer_on_the_model_that_the_first_has_trained",
        ("a second trainer states the ε of its run alone", "a model made again", ""),
    ),
    *_each(
        "refused",
        "test_trainers.py::test_a_training_step_of_lightning_that_reaches_for_the_logger",
        ("a training step hands its loss to the logger itself", "a validation step does", ""),
    ),
    *_each(
        "refused",
        "test_trainers.py::test_a_trainer_that_evaluates_on_a_copy_of_its_training_records",
        ("a trainer evaluates on a copy of its training records", "on other records", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_total_over_noise_that_steps_share_is_refused",
        ("a total that takes shared noise for independent", "of independent noise", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_total_with_a_replaced_run_that_cannot_be_added_up_is_refused",
        ("a total that takes a replaced run's shared noise for independent", "a replaced run like the last", ""),
        ("a total over a replaced run of another unit", "of the same unit", ""),
    ),
    *_each(
        "what the user's state remembers",
        "test_budgets.py::test_a_budget_that_is_restored_from_a_backup",
        ("a budget restored from a backup", "as it was", ""),
    ),
    *_each(
        "what the user's state remembers",
        "test_budgets.py::test_a_run_whose_charges_are_deleted",
        ("a run whose ledger and checkpoint are deleted or restored", "as they were", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_run_under_a_budget_that_is_resumed_on_other_records",
        ("a run under a budget resumed on other records", "on its own", ""),
    ),
    *_each(
        "refused",
        "test_around_a_run.py::test_a_model_that_is_trained_twice_on_the_same_records",
        ("a second run that begins with what the first one learnt", "with a model that was made again", ""),
    ),
    *_each(
        "refused",
        "test_around_a_run.py::test_a_loop_that_goes_on_with_a_model_which_was_trained",
        ("a second step on a model that a first one has trained", "on the ledger of the first", ""),
        ("a second step after an optimizer that writes .data", "on the ledger of the first", ""),
        ("a second step on the same records in another order, or on a quarter of them", "on other people", ""),
        ("a head on layers that an earlier run has trained on the records", "on layers made again", ""),
    ),
    *_each(
        "refused",
        "test_around_a_run.py::test_a_copy_of_a_model_that_was_trained",
        ("a copy of a model that was trained on the records", "a copy of one that was not", ""),
        ("a loop that uses a copy of a trained layer beside its model", "a layer that was not trained", ""),
    ),
    *_each(
        "refused",
        "test_around_a_run.py::test_test_records_that_are_training_records",
        ("exact accuracies of training records in the record", "of test records", ""),
        ("the same, with names like those that `assay train` notes", "of test records", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_budget_of_rows_beside_one_of_their_persons",
        ("a budget of rows beside one of their persons, each with its own total", "rows of another table", ""),
    ),
    *_each(
        "two worlds",
        "test_budgets.py::test_how_many_records_another_budget_covers_is_not_released",
        ("the number of records that another budget covers, in the record of a run", "its name", ""),
    ),
    *_each(
        "refused",
        "test_around_a_run.py::test_a_model_that_is_trained_under_two_budgets",
        ("a model trained again under another budget of the same records", "under its budget", ""),
    ),
    *_each(
        "refused",
        "test_sites.py::test_a_client_with_fewer_records_than_the_plan_says",
        ("a client with fewer records than ε counts on", "with as many", ""),
    ),
    *_each(
        "refused",
        "test_sites.py::test_a_seeded_client_that_a_server_asks_twice",
        ("a seeded client that answers two tasks with one noise", "one task", ""),
    ),
    *_each(
        "refused",
        "test_sites.py::test_a_seeded_client_that_is_asked_for_a_turn_before_the_first",
        ("turns of a client that its plan does not have, which cost nothing", "refused", ""),
    ),
    *_each(
        "refused",
        "test_columns.py::test_a_public_sample_of_private_rows",
        ("a schema from a public sample that is an extract of the private rows", "of other rows", ""),
    ),
    *_each(
        "refused",
        "test_persons.py::test_ranks_that_disagree_on_whose_two_rows_are",
        ("two ranks that disagree on whose some rows are", "that agree", ""),
    ),
    *_each(
        "refused",
        "test_persons.py::test_one_person_under_two_ids_is_refused",
        ("one person under two spellings of an id counted as two", "under one", ""),
    ),
    *_each(
        "computed again",
        "test_persons.py::test_delta_at_an_epsilon_that_is_a_whole_number",
        ("profiles that are cut to whole numbers where ε is one", "numbers with a point", ""),
    ),
    *_each(
        "refused",
        "test_persons.py::test_an_id_that_is_missing_or_of_another_type_is_refused",
        ("7, 7.0 and a missing id counted as persons", "ids of one type", ""),
    ),
    *_each(
        "refused",
        "test_persons.py::test_rows_that_were_loaded_with_a_unit_are_not_counted_as_persons",
        ("rows that were loaded with a unit under a plan of single rows", "of persons", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_total_over_choices_with_one_seed",
        ("a total over choices whose trials have the same noise", "with a seed each", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_runs_of_one_budget_with_one_seed",
        ("two runs of a budget with the same noise", "with a seed each", "ForgetsSeeds"),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_run_that_is_resumed_under_an_earlier_copy_of_its_budget",
        ("a run resumed under an earlier copy of its budget", "under its budget", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_total_over_runs_with_one_seed",
        ("a total over runs with the same noise", "with a seed each", ""),
    ),
    *_each(
        "ledger",
        "test_budgets.py::test_a_total_of_one_run_that_somebody_stopped",
        ("a total that trusts the steps of a run that was stopped by hand", "of a run that ended", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_a_strategy_without_a_last_band_that_is_scaled_as_a_band_is",
        ("a BLT strategy scaled by one column", "scaled by all turns of a record", ""),
    ),
    *_each(
        "refused",
        "test_budgets.py::test_clients_of_another_partition_are_others",
        ("a budget and a total of clients that are divided in two ways", "in one way", ""),
    ),
    *_each(
        "what the files tell",
        "test_columns.py::test_what_is_left_of_an_estimate_when_another_run_begins",
        ("a digest without a key of the rows of an estimate", "what was asked for alone", "KeepsRows"),
    ),
    *_each(
        "refused before anything runs",
        "test_around_a_run.py::test_a_test_part_that_holds_training_records",
        ("a file whose test part holds its training records", "other records", ""),
    ),
)
