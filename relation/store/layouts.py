"""Schemas of every Parquet the pipeline writes below the report, with the unit of each column."""

import pyarrow as pa

from relation.store.parquet import Column, schema

_TEXT, _INT, _REAL = pa.string(), pa.int64(), pa.float64()

_RUN_KEY = (
    Column("scale", _TEXT, description="10M, 30M or 100M"),
    Column("variant", _TEXT, description="model family"),
    Column("seed", _INT),
)

DATA = schema(
    Column("split", _TEXT, description="train or validation"),
    Column("tokens", _INT, "tokens", "end-of-text tokens included"),
    Column("documents", _INT, "documents"),
    Column("characters", _INT, "characters"),
    Column("unigram_entropy", _REAL, "nat/token", "entropy of the split's predicted tokens"),
    Column("sha256", _TEXT, description="of the token file"),
)

MODELS = schema(
    Column("scale", _TEXT),
    Column("variant", _TEXT),
    Column("parameters", _INT, "parameters", "counted on the built model, tied matrix once"),
    Column("layers", _INT),
    Column("layout", _TEXT, description="one letter a layer: A MHA, F Full, L Linear"),
    Column("d_model", _INT, "channels"),
    Column("heads", _INT),
    Column("head_dim", _INT, "channels"),
    Column("d_ff", _INT, "channels"),
    Column("vocab", _INT, "entries"),
    Column("context", _INT, "tokens"),
    Column("micro", _INT, "sequences"),
    Column("accumulation", _INT, "micro-batches"),
    Column("budget_tokens", _INT, "tokens"),
    Column("data_title", _TEXT),
)

RUN = schema(
    *_RUN_KEY,
    Column("parameters", _INT, "parameters"),
    Column("final_nll", _REAL, "nat/token", "full validation split, final checkpoint"),
    Column("validation_tokens", _INT, "tokens"),
    Column("unigram_entropy", _REAL, "nat/token", "of the validation split"),
    Column("budget_tokens", _INT, "tokens"),
    Column("trained_tokens", _INT, "tokens"),
    Column("updates", _INT, "updates", "the partial one included"),
    Column("epochs", _REAL, "passes over the training windows"),
    Column("order_hash", _TEXT, description="of the windows consumed, in order"),
    Column("init_hash", _TEXT, description="of the matrices shared by paired variants at update 0"),
    Column("seconds", _REAL, "s", "wall time of all updates"),
    Column("tokens_per_second", _REAL, "tok/s", "trained tokens over those seconds"),
    Column("peak_memory_gib", _REAL, "GiB", "allocated on the GPU; null on a CPU"),
)

LOG = schema(
    Column("update", _INT, description="from 1"),
    Column("tokens", _INT, "tokens", "consumed so far"),
    Column("update_tokens", _INT, "tokens", "of this update"),
    Column("loss", _REAL, "nat/token", "mean over the update's tokens, before it"),
    Column("learning_rate", _REAL),
    Column("gradient_norm", _REAL, description="global L2 norm before clipping"),
    Column("tokens_per_second", _REAL, "tok/s"),
)

PROBES = schema(
    *_RUN_KEY,
    Column("update", _INT, description="after which it was taken; 0: the initial weights"),
    Column("tokens", _INT, "tokens", "consumed by then"),
    Column("layer", _INT, description="from 0; null for what is the whole model's"),
    Column("part", _INT, description="of an angle, its head pair from 0; else null"),
    Column(
        "metric", _TEXT, description="validation_nll, lambda, theta, or one of the flow as in FLOW"
    ),
    Column(
        "value",
        pa.float32(),
        description="nat/token, radians for theta; a flow's is the mean over heads",
    ),
)

_READING_KEY = (
    Column("reading", _TEXT, description="residual scale and choice, as unscaled-sd-0.02"),
    Column("variant", _TEXT, description="model family"),
    Column("seed", _INT),
)

READING_RUNS = schema(
    _READING_KEY[0],
    *(Column(f.name, f.type, f.metadata[b"unit"].decode()) for f in RUN),
    Column("backend", _TEXT, description="of the run's operator"),
    Column("config_hash", _TEXT),
    Column("code_hash", _TEXT),
    Column("golden_hash", _TEXT),
    Column("corpus_sha256", _TEXT, description="of the texts; null for generated ones"),
    Column("commit", _TEXT),
    Column("torch", _TEXT, description="version"),
    Column("device", _TEXT),
    Column("created", _TEXT, description="time, ISO 8601, UTC"),
)

READING_LOSSES = schema(
    *_READING_KEY,
    Column("tokens", _INT, "tokens", "consumed so far"),
    Column("update_tokens", _INT, "tokens", "of this update"),
    Column("loss", pa.float32(), "nat/token", "mean over the update's tokens, before it"),
)

READING_PROBES = schema(
    *_READING_KEY,
    *(Column(f.name, f.type, f.metadata[b"unit"].decode()) for f in list(PROBES)[3:]),
)

READING_DIAGNOSES = schema(
    *_READING_KEY,
    Column("layer", _INT, description="from 0"),
    Column("head", _INT, description="from 0"),
    Column("metric", _TEXT, description="as in FLOW"),
    Column("count", _INT, description="rows of the flow, or matrices, that the value averages"),
    Column("value", pa.float32(), description="mean over the sequences, by count"),
)

_DIAGNOSED_KEY = (
    Column("scale", _TEXT, description="10M, 30M or 100M; null for a checkpoint of no campaign"),
    Column("variant", _TEXT, description="model family; null as the scale is"),
    Column("seed", _INT, description="null as the scale is"),
    Column("layer", _INT, description="from 0"),
)

FLOW = schema(
    *_DIAGNOSED_KEY,
    Column("head", _INT, description="from 0"),
    Column("sequence", _INT, description="from 0"),
    Column("length", _INT, "tokens"),
    Column("count", _INT, description="rows of the flow, or matrices, that the value averages"),
    Column("metric", _TEXT),
    Column(
        "value", pa.float32(), description="fraction of flow, rank or energy, as the metric says"
    ),
)

FLOW_CURVES = schema(
    *_DIAGNOSED_KEY,
    Column(
        "curve",
        _TEXT,
        description=(
            "self: the diagonal by position; distance: conditional historical mass by i - j; "
            "sigma: singular values, descending"
        ),
    ),
    Column("length", _INT, "tokens"),
    Column("values", pa.list_(pa.float32()), description="means over heads and sequences, 11 bits"),
)

FLOW_MAPS = schema(
    *_DIAGNOSED_KEY,
    Column("head", _INT, description="from 0"),
    Column("length", _INT, "tokens", "of the first sequence, which is shown"),
    Column("side", _INT, "blocks", "rows and columns of the map"),
    Column(
        "codes",
        pa.binary(),
        description=(
            "side x side bytes, row by row: flow from a block's tokens to another block, mean over "
            "the former, as relation.flow.codes encodes it"
        ),
    ),
)

COPYING = schema(
    *_RUN_KEY,
    Column("distance", _INT, "tokens", "from a token back to where it stood before"),
    Column("layer", _INT, description="from 0; null for what is the whole model's"),
    Column("head", _INT, description="from 0; null as the layer is"),
    Column(
        "metric",
        _TEXT,
        description=(
            "first_ and repeat_nll, first_ and repeat_accuracy; of a head induction, its mean flow "
            "to the token after the earlier occurrence, and self"
        ),
    ),
    Column("count", _INT, description="predictions, or rows of a flow, that the value averages"),
    Column("value", _REAL, description="nat/token, or a fraction"),
)

LENGTHS = schema(
    *_RUN_KEY,
    Column(
        "reading",
        _TEXT,
        description=(
            "whole: long windows; frozen and removed: with the count correction kept at the "
            "training context, and without it; apart: the same tokens in windows as long as trained"
        ),
    ),
    Column("first", _INT, "tokens", "position of the first predicted token in the long window"),
    Column("count", _INT, "tokens", "predicted, over all windows"),
    Column("nll", _REAL, "nat/token", "mean from that position to the next row's"),
)

SELF_USE = schema(
    *_RUN_KEY,
    Column("layer", _INT, description="from 0; null for the whole model"),
    Column("metric", _TEXT, description="self_flow, mean over heads and tokens; or nll"),
    Column(
        "group",
        _TEXT,
        description=(
            "of self_flow, how tokens are sorted: frequency, position or occurrence; of nll, what "
            "the layer lacks: self, exchange, count or mixing; null for the whole model"
        ),
    ),
    Column("band", _INT, description="of the tokens, from 0; null for nll"),
    Column("count", _INT, "tokens"),
    Column("value", _REAL, description="fraction of flow, or nat/token"),
)

_CONDITIONS = (
    Column("device", _TEXT),
    Column("driver", _TEXT, description="of the GPU; null on a CPU"),
    Column("sm_clock", _REAL, "MHz", "median of the readings while it was timed; null on a CPU"),
    Column("sm_clock_least", _REAL, "MHz"),
    Column("sm_clock_limit", _REAL, "MHz", "the highest that the GPU has"),
    Column("temperature", _REAL, "C", "highest of the readings"),
    Column("power", _REAL, "W", "highest of the readings"),
    Column("disturbed", _TEXT, description="what else ran or throttled; null where nothing did"),
)

_OUTCOME = (
    Column("status", _TEXT, description="PASS, OOM, KILLED, UNAVAILABLE, WRONG or FAILED"),
    Column("reason", _TEXT, description="one line; null where the status is PASS"),
)

THROUGHPUT = schema(
    Column("benchmark", _TEXT, description="fixed, matched, linear-steady or linear-long"),
    Column("scale", _TEXT),
    Column("side", _TEXT, description="what was measured, by its name in the benchmark"),
    Column("variant", _TEXT),
    Column("backend", _TEXT),
    Column("context", _INT, "tokens"),
    Column("micro", _INT, "sequences"),
    Column("accumulation", _INT, "micro-batches"),
    Column("position", _INT, description="index in the paper's order"),
    *_OUTCOME,
    Column("tokens_per_second", _REAL, "tok/s", "complete measured updates, median of the rounds"),
    Column("tokens_per_second_low", _REAL, "tok/s", "95% interval; null below six rounds"),
    Column("tokens_per_second_high", _REAL, "tok/s"),
    Column("raw_tokens_per_second", _REAL, "tok/s", "from the first update, compilation included"),
    Column("allocated_gib", _REAL, "GiB", "peak allocated; null where the device does not count"),
    Column("reserved_gib", _REAL, "GiB", "peak reserved"),
    Column("measured_updates", _INT, "updates", "of all rounds"),
    Column("samples", pa.list_(_REAL), "tok/s", "every round, in order"),
    Column("alone", pa.bool_(), description="measured apart: together they did not fit"),
    Column("kernels", pa.list_(_TEXT), description="of attention or Relation, as a profile saw"),
    Column("tokens", _TEXT, description="corpus, or random"),
    *_CONDITIONS,
)

COMPLEXITY = schema(
    Column("operator", _TEXT),
    Column("context", _INT, "tokens"),
    *_OUTCOME,
    Column("seconds", _REAL, "s", "median, forward and backward of one layer's operator"),
    Column("seconds_low", _REAL, "s", "95% interval; null below six rounds"),
    Column("seconds_high", _REAL, "s"),
    # Of records from before decoding had a benchmark and a record of its own; null in others.
    Column("decode_reason", _TEXT, description="why decoding has no time; null where it has one"),
    Column("decode_seconds", _REAL, "s", "median, one token of the model after T - 1, batch 1"),
    Column("decode_seconds_low", _REAL, "s"),
    Column("decode_seconds_high", _REAL, "s"),
    Column("decode_state_bytes", _INT, "bytes", "tensors one layer keeps for the next token"),
    *_CONDITIONS,
)

VERIFICATION = schema(
    Column("check", _TEXT, description="exactness, identity, mixing, recurrence or history"),
    Column("name", _TEXT, description="Y, the state C or a gradient; the identity"),
    Column("operator", _TEXT, description="what was checked: a backend, or the definition"),
    Column("scale", _TEXT, description="whose head width and context it is"),
    Column("heads", _INT),
    Column("length", _INT, "tokens"),
    Column("width", _INT, "channels", "of a head"),
    Column("precision", _TEXT, description="bf16, fp32 or fp64"),
    Column("measure", _TEXT, description="RMS or largest"),
    Column("error", _REAL, description="off the definition in FP64, in the result's own scale"),
    Column("yardstick", _REAL, description="the same of the definition in that precision"),
    Column("allowed", _REAL, description="what the error may be at most"),
    Column("draws", _INT, description="of random inputs"),
    Column("device", _TEXT),
)

GRADIENTS = schema(
    Column("variant", _TEXT, description="model family"),
    Column("scale", _TEXT, description="whose widths the model has"),
    Column("parameter", _TEXT, description="whose gradient it is"),
    Column("elements", _INT, description="numbers of the parameter"),
    Column("update", _TEXT, description="launched by the host, or replayed from CUDA graphs"),
    Column("measure", _TEXT, description="RMS, largest or scale"),
    Column("error", _REAL, description="off FP64, as the gradient; scale: |<g, t> / <t, t> - 1|"),
    Column("yardstick", _REAL, description="the same of the eager step with reference backends"),
    Column("allowed", _REAL, description="what the error may be at most"),
    Column("draws", _INT, description="of random weights and tokens, over which errors are pooled"),
    Column("layout", _TEXT, description="one letter a layer: A MHA, F Full, L Linear"),
    Column("width", _INT, "channels", "of a head"),
    Column("length", _INT, "tokens"),
    Column("micro", _INT, "sequences"),
    Column("accumulation", _INT, "micro-batches"),
    Column("backends", pa.list_(_TEXT), description="of the checked step, by operator"),
    Column("precision", _TEXT, description="bf16 or fp32"),
    Column("compiled", pa.bool_(), description="whether the checked step is; else it is eager"),
    Column("device", _TEXT),
)

RECALL = schema(
    Column("mixer", _TEXT, description="mha, full, linear, hybrid, or a peer: gla, kda"),
    Column("layout", _TEXT, description="one letter a layer, as of a model; empty for a peer"),
    *_OUTCOME,
    Column("width", _INT, "channels", "d of the model"),
    Column("parameters", _INT, "parameters"),
    Column("learning_rate", _REAL),
    Column("seed", _INT, description="of the weights and the training sequences"),
    Column("chosen", pa.bool_(), description="whether the rate is the one chosen at this width"),
    Column("validation_accuracy", _REAL, description="what the rate is chosen by, mean over tasks"),
    Column("validation_nll", _REAL, "nat/query", "null where it is not finite"),
    Column("seconds", _REAL, "s", "of the training and its answers, compilation included"),
    Column("length", _INT, "tokens", "T of the task's sequences"),
    Column("pairs", _INT, description="of a key and its value in a sequence"),
    Column("distance", _INT, "tokens", "from a query back to its key: this to twice this, less 1"),
    Column("queries", _INT, description="of the test sequences at such a distance"),
    Column("right", _INT, description="of them, those whose likeliest token is the value"),
    Column("device", _TEXT),
)

BENCH = schema(
    Column("benchmark", _TEXT, description="what is compared: flash, linear or decoder"),
    Column("measure", _TEXT, description="forward, forward+backward, both also host; step; long"),
    Column("scale", _TEXT, description="whose geometry it is"),
    Column("batch", _INT, "sequences", "B; of a step, the micro-batch"),
    Column("heads", _INT, description="H"),
    Column("length", _INT, "tokens", "T"),
    Column("width", _INT, "channels", "D, one head"),
    Column("precision", _TEXT, description="bf16 or fp32"),
    Column("peer", _TEXT, description="what was measured"),
    Column("status", _TEXT, description="PASS, OOM, KILLED, UNAVAILABLE, WRONG or FAILED"),
    Column("reason", _TEXT, description="one line; null where the status is PASS"),
    Column("seconds", _REAL, "s", "median over the rounds"),
    Column("seconds_low", _REAL, "s", "lower quartile"),
    Column("seconds_high", _REAL, "s", "upper quartile"),
    Column("ratio", _REAL, description="time over the subject's of the same round, median"),
    Column("ratio_low", _REAL, description="95% interval of that median; null below six rounds"),
    Column("ratio_high", _REAL),
    Column("tokens_per_second", _REAL, "tok/s", "of a step; null for an operator"),
    Column("peak_bytes", _INT, "bytes", "most allocated, inputs left out"),
    Column(
        "relative_error",
        _REAL,
        description="RMS off the FP32 definition, over its RMS: of Y; largest of Y and gradients",
    ),
    Column("moved_bytes", _INT, "bytes", "of the floor: what its copy reads and writes"),
    Column("samples", pa.list_(_REAL), "s", "every round, in order"),
    Column("device", _TEXT),
)

DECODE = schema(
    Column("model", _TEXT, description="mha, full, linear, hybrid, or llama, the peer"),
    Column("layout", _TEXT, description="one letter a layer: A MHA, F Full, L Linear"),
    Column(
        "measure",
        _TEXT,
        description="token: a token of every row, its sampling included; prompt: `context` tokens "
        "of every row read at once, logits of the last; forward: training's forward pass of as "
        "many, its loss included; agreement: tokens decoded after `context` beside the forward",
    ),
    Column("context", _INT, "tokens", "that each row has read or, of prompt and forward, reads"),
    Column("batch", _INT, "sequences"),
    Column("precision", _TEXT, description="bf16 or fp32"),
    *_OUTCOME,
    Column("seconds", _REAL, "s", "median of a token, a prompt or a forward of the whole batch"),
    Column("seconds_low", _REAL, "s", "95% interval"),
    Column("seconds_high", _REAL, "s"),
    Column("tokens_per_second", _REAL, "tok/s", "over all rows"),
    Column("state_bytes", _INT, "bytes", "of the decode state, measured or not"),
    Column("compared_tokens", _INT, "tokens", "whose logits agreement compares, over all rows"),
    Column("logit_error", _REAL, description="RMS of decoding's logits off FP64's, over theirs"),
    Column("forward_error", _REAL, description="the same of the forward's in that precision"),
    Column("greedy_differs", _INT, "tokens", "where decoding's largest logit isn't the forward's"),
    Column("forward_differs", _INT, "tokens", "where the forward's largest logit isn't FP64's"),
    Column("samples", pa.list_(_REAL), "s", "every round, in order"),
    Column("device", _TEXT),
)

PROFILE = schema(
    Column("scale", _TEXT),
    Column("variant", _TEXT, description="mha or full"),
    Column("backend", _TEXT),
    Column("micro", _INT, "sequences", "the update's one micro-batch"),
    Column("context", _INT, "tokens"),
    Column("precision", _TEXT, description="bf16 or fp32"),
    Column("part", _TEXT, description="of the step, as relation.bench.profile sorts it"),
    Column("seconds", _REAL, "s", "of an update"),
    Column("kernels", _REAL, description="of an update; on a CPU, operations"),
    Column("wall_seconds", _REAL, "s", "median of whole updates that nothing observes"),
    Column("device", _TEXT),
)
