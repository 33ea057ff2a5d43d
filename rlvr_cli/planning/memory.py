"""Estimate the memory of a training on each GPU, term by term, without loading the model.

P = parameters, b = rows of a micro-batch, S = prompt + completion tokens, T = completion tokens, H, I, V = hidden,
intermediate and vocabulary size, L = blocks, q = heads x head_dim, N = processes. Sources of the equations:

- States: ZeRO (arXiv:1910.02054, section 3 and figure 1). AdamW holds two moments in the dtype of the trained weights.
  DDP's buckets hold the gradients (`gradient_as_bucket_view`) and persist during sampling.
- Activations: tensors that autograd saves in a block of transformers 5 (Qwen2, Qwen3, Llama), by operation
  (:func:`block_activations`); with gradient checkpointing the input of each block and, in the backward pass, one block.
- Head: this project's (`training/log_probs.py`), at most 2^26 logits at a time, 2^29 on a GPU; TRL 1.16's for
  demonstrations, which projects tiles of 4096 tokens x 32768 words.
- Keys and values: two elements per token, block, key head and head dimension.

`docs/plan.md` compares the estimate with measurements in float32 on a CPU; the terms for bfloat16, several GPUs and
quantized weights follow the libraries' sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rlvr_cli.models.architecture import Architecture
from rlvr_cli.models.sampling.memory import MAX_ROWS, PREFILL_TOKENS, USABLE_SHARE, RowMemory, activation_bytes

GIB = 2**30
Strategy = Literal["single", "ddp", "zero1", "zero2", "zero3"]
Engine = Literal["none", "local", "transformers", "vllm_colocate", "vllm_server"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]

# training/log_probs.py: logits at once on a CPU, and on a GPU.
MAX_LOGITS, MAX_GPU_LOGITS = 2**26, 2**29
# TRL 1.16: kernels/chunked_logprob.py and trainer/utils.py.
TILE_TOKENS, TILE_WORDS = 4096, 32768
# models/sampling/transformers.py.
TRANSFORMERS_ROWS, SCORED_LOGITS = 64, 2**28
# NF4 with double quantization (arXiv:2305.14314, section 3): 4 bits and 0.127 bits of constants per weight.
NF4_BYTES = (4 + 0.127) / 8
# The CUDA context, its libraries and NCCL's buffers: assumed, not measured.
CUDA_CONTEXT = GIB
# DeepSpeed's default bucket, in elements.
DEEPSPEED_BUCKET = 500_000_000
# Elements of its shard that a process of ZeRO-3 steps at once (DeepSpeed's default).
SUB_GROUP_SIZE = 1_000_000_000
# Reduce and gather buckets with overlap_comm, of 2 bytes per element (transformers' DeepSpeed guide).
OVERLAP_BUCKETS = 4.5


@dataclass(frozen=True)
class Adapter:
    """LoRA adapters on the linear layers ``targets`` (None = all); ``quantized``: on a base in 4 bits (QLoRA)."""

    rank: int
    targets: tuple[str, ...] | None = None
    quantized: bool = False


@dataclass(frozen=True)
class Training:
    """Settings that determine the memory of an update.

    Attributes:
        micro_batch: rows per forward pass.
        prompt_tokens, completion_tokens: of the longest row.
        weights: bytes per loaded weight: 4 (float32) or 2 (bfloat16).
        frozen_weights: bytes per weight of an adapter's base.
        autocast: bfloat16 arithmetic on float32 weights (on a GPU).
        accumulates: several micro-batches per step, so that gradients exist during a forward pass.
        past: earlier copies of the trained weights in host memory (rollout.behind + 1, or 0).
        summed: bytes per element of DeepSpeed's accumulated gradients from stage 2 on.
        processes: GPUs of the training.
        reference: a second model for the KL term; with adapters the base, at no cost.
        teacher: parameters of the teacher of a distillation; 0 = the policy's number, None = no teacher.
        supervised: fine-tuning on demonstrations with TRL's loss.
        gpu: on a GPU instead of a CPU.
        offload_optimizer, offload_weights: to host memory, by DeepSpeed.
    """

    micro_batch: int
    prompt_tokens: int
    completion_tokens: int
    weights: Literal[2, 4] = 4
    frozen_weights: Literal[2, 4] = 4
    autocast: bool = True
    checkpointing: bool = True
    accumulates: bool = True
    strategy: Strategy = "single"
    processes: int = 1
    adapter: Adapter | None = None
    reference: bool = False
    teacher: int | None = None
    value_head: bool = False
    attention: Attention = "sdpa"
    supervised: bool = False
    gpu: bool = True
    offload_optimizer: bool = False
    offload_weights: bool = False
    summed: Literal[2, 4] = 4
    past: int = 0

    @property
    def tokens(self) -> int:
        """S, tokens of the longest row."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def compute(self) -> int:
        """Bytes per element in a matrix product."""
        return 2 if self.autocast or self.weights == 2 or self.half else 4

    @property
    def half(self) -> bool:
        """True if DeepSpeed holds the weights in bfloat16 with a float32 copy among the optimizer states (on GPUs)."""
        return self.strategy.startswith("zero") and self.gpu

    @property
    def stream(self) -> int:
        """Bytes per element of the residual stream: the dtype of the weights, unchanged by autocast."""
        return self.compute if self.half else self.weights

    @property
    def trained_element(self) -> int:
        """Bytes per trained weight without DeepSpeed; adapters are float32."""
        return self.weights if self.adapter is None else 4

    @property
    def gathers(self) -> bool:
        return self.shards > 1 or self.offload_weights

    @property
    def shards(self) -> int:
        """Number of GPUs that share the weights."""
        return self.processes if self.strategy == "zero3" else 1


@dataclass(frozen=True)
class Sampling:
    """Settings that determine the memory of a rollout on a training GPU.

    Attributes:
        rows: completions per rollout in this process.
        gpu_memory: share of the GPU for vLLM (colocate).
        group: completions per prompt.
        batch: completions sampled at once; None = chosen by the engine.
        sorts: top_p, top_k, min_p or a repetition penalty is active.
        sleeps: vLLM frees its memory during updates (colocate).
    """

    engine: Engine
    rows: int
    gpu_memory: float = 0.3
    group: int = 1
    batch: int | None = None
    sorts: bool = False
    sleeps: bool = False


@dataclass(frozen=True)
class Term:
    """A term of the estimate: bytes on a GPU, and their explanation."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of one GPU.

    Attributes:
        states: permanent terms: weights, optimizer states, reference, buffers.
        phases: terms added by each phase: sampling, the end of a forward pass, the backward pass, the optimizer step.
        host: this process's share of host memory, for loading or offloading.
    """

    states: tuple[Term, ...]
    phases: dict[str, tuple[Term, ...]]
    host: Term

    def total(self, phase: str) -> int:
        return _total_bytes(self.states) + _total_bytes(self.phases[phase])

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=self.total)

    @property
    def peak(self) -> int:
        return self.total(self.peak_phase)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the peak, largest first."""
        terms = [term for term in (*self.states, *self.phases[self.peak_phase]) if term.bytes]
        return tuple(sorted(terms, key=lambda term: -term.bytes))


def estimate_memory(
    model: Architecture, training: Training, sampling: Sampling, gpu_bytes: int = 80 * GIB
) -> MemoryEstimate:
    """Estimate the memory of a GPU of ``gpu_bytes``, of which vLLM takes a share, and the local sampler the rest."""
    states = tuple(_state_terms(model, training))
    if sampling.engine == "vllm_colocate" and not sampling.sleeps:
        states += (_vllm_term(sampling, gpu_bytes),)
    gradients = _gradient_term(model, training)
    accumulated = (gradients,) if training.accumulates else ()
    head_forward, head_backward = _head_terms(model, training)
    saved = _saved_activations(model, training)
    # autocast caches copies of trained weights only.
    is_cached = training.adapter is None or not training.checkpointing
    casts = _autocast_copies(model, training, model.linear_parameters() * is_cached, "all blocks")
    block_casts = _autocast_copies(model, training, model.linear_parameters() // model.layers, "one block")
    casts_kept = () if training.checkpointing else (casts,)
    one_block = (
        (_recomputed_block(model, training), block_casts)
        if training.checkpointing
        else (_activation_gradients(model, training),)
    )
    phases = {
        "sampling": tuple(_sampling_terms(model, training, sampling, gpu_bytes, gpu_bytes - _total_bytes(states))),
        "end of the forward pass": (*accumulated, casts, saved, head_forward),
        "backward pass of the head": (*accumulated, *casts_kept, saved, head_backward),
        # Without accumulation gradients replace activations block by block, and are complete only here.
        "backward pass of the blocks": (*accumulated, *casts_kept, saved, *one_block),
        "last block's backward pass": (gradients, *(one_block if training.checkpointing else ())),
        "optimizer step": (gradients, *_optimizer_step_terms(model, training)),
    }
    return MemoryEstimate(states, phases, _host_term(model, training))


def trained_parameters(model: Architecture, training: Training) -> int:
    head = model.hidden + 1 if training.value_head else 0
    if training.adapter is None:
        return model.parameters + head
    return model.adapter_parameters(training.adapter.rank, training.adapter.targets) + head


def block_activations(model: Architecture, training: Training) -> int:
    """Return the bytes that autograd saves in a block for the whole micro-batch.

    Each of two norms saves its input, the normalised input and its output; the linear layers their inputs (under
    autocast a bfloat16 copy each), attention its queries, keys, values and output, the gated MLP four tensors of width
    I. sdpa with a padding mask saves keys and values repeated for every head, and the mask in the compute dtype; eager
    attention saves its weights. With adapters the block's weights are frozen, which saves neither normalised inputs nor
    inputs of linear layers.
    """
    c, s, h, frozen = training.compute, training.stream, model.hidden, training.adapter is not None
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    # The input in float32, to which a bfloat16 stream is copied, and the normalised input in the stream's dtype.
    norm = (4 + s * (not frozen)) * h
    # One for q, k and v, one for gate and up (a copy each if the stream and compute dtypes differ), one for down.
    inputs = c * ((5 if s != c else 2) * h + model.intermediate)
    if training.adapter is not None:
        inputs = _adapter_inputs(model, training.adapter, c)
    repeated = keys if training.attention == "flash_attention_2" else queries
    attention = c * (2 * queries + 2 * repeated) + 4 * model.heads
    if model.qk_norm:
        attention += (c * (not frozen) + 4) * (queries + keys)
    per_token = 2 * norm + inputs + attention + 3 * c * model.intermediate
    rows, length = training.micro_batch, training.tokens
    square = rows * length * length
    quadratic = {
        "sdpa": c * square,
        # Softmax in float32, and its result in the compute dtype.
        "eager": (4 + (c if c != 4 else 0)) * square * model.heads,
        "flash_attention_2": 0,
    }
    return rows * length * per_token + quadratic[training.attention]


def _adapter_inputs(model: Architecture, adapter: Adapter, element: int) -> int:
    """Return the bytes per token that the adapters of a block save: the inputs of A and of B."""
    adapted = [name for name in model.linear_shapes if adapter.targets is None or name in adapter.targets]
    into_b = element * adapter.rank * len(adapted)
    if element == 2:
        # Each float32 adapter gets a separate copy of its input, which autocast copies again.
        return into_b + element * sum(model.linear_shapes[name][0] for name in adapted)
    # Layers with the same input save it once; the output of attention is already counted.
    groups = {
        "q_proj": "qkv",
        "k_proj": "qkv",
        "v_proj": "qkv",
        "gate_proj": "mlp",
        "up_proj": "mlp",
        "down_proj": "down",
    }
    widths = {groups[name]: model.linear_shapes[name][0] for name in adapted if name in groups}
    return into_b + element * sum(widths.values())


def _state_terms(model: Architecture, training: Training) -> Iterable[Term]:
    parameters, trained, n = model.parameters, trained_parameters(model, training), training.processes
    adapter, strategy = training.adapter, training.strategy
    spread = f", sharded over {training.shards} GPUs" if training.shards > 1 else ""
    if adapter is not None and adapter.quantized:
        rest = parameters - model.linear_parameters()
        size = round(model.linear_parameters() * NF4_BYTES + rest * training.weights + trained * 4)
        yield Term("weights", size, f"linear layers in 4 bits, the others in {8 * training.weights}, adapters in 32")
    elif adapter is not None:
        element = 2 if training.half else training.weights
        size = 0 if training.offload_weights else parameters * element // training.shards
        yield Term("weights", size + trained * 4, f"{element} bytes each{spread}; adapters 4 bytes")
    elif training.half:
        yield Term("weights", 0 if training.offload_weights else 2 * parameters // training.shards, f"bfloat16{spread}")
    else:
        yield Term(
            "weights", training.weights * parameters // training.shards, f"{training.weights} bytes each{spread}"
        )
    yield _optimizer_states(trained, training)
    element = 2 if training.half else training.weights
    frozen = 0 if training.offload_weights else element
    if training.reference and adapter is None:
        size = frozen * parameters // training.shards
        yield Term(
            "reference policy", size, f"a second model for the KL term (method.kl.beta), {element} bytes{spread}"
        )
    if training.past and not training.gpu:
        yield Term("earlier weights", _past_bytes(model, training), f"{training.past} copies, for rollout.behind")
    if training.teacher is not None:
        size = frozen * (training.teacher or parameters) // training.shards
        yield Term("teacher", size, f"a further model (method.advantage.teacher), {element} bytes{spread}")
    if strategy == "ddp" and n > 1:
        yield Term("communication buckets", training.trained_element * trained, "DDP's, which hold the gradients")
    elif strategy.startswith("zero"):
        # launch/deepspeed_config.py: ZeRO-3's buckets have hidden x hidden elements, others DeepSpeed's default.
        bucket = model.hidden**2 if strategy == "zero3" else min(DEEPSPEED_BUCKET, trained)
        yield Term("communication buckets", round(OVERLAP_BUCKETS * 2 * 2 * bucket), "DeepSpeed's, with overlap_comm")
    if training.gathers:
        why = "the current and the next block, embedding and head"
        yield Term("gathered layers", training.compute * (2 * model.block + model.embedding), why)
    if training.gpu:
        yield Term("CUDA", CUDA_CONTEXT, "context and libraries: assumed, not measured")


def _optimizer_states(trained: int, training: Training) -> Term:
    # torch's AdamW keeps its moments in the dtype of the weights.
    copies = 12 if training.half else 2 * training.trained_element
    name, why = "optimizer states", f"two moments of {8 * training.trained_element} bits"
    if training.half:
        why = "two float32 moments and a float32 copy of the weights"
    if training.offload_optimizer:
        return Term(name, 0, f"{why}, in host memory")
    spread = training.processes if training.strategy not in ("single", "ddp") else 1
    return Term(name, copies * trained // spread, why + (f", sharded over {spread} GPUs" if spread > 1 else ""))


def _gradient_term(model: Architecture, training: Training) -> Term:
    trained = trained_parameters(model, training)
    if training.strategy == "ddp" and training.processes > 1:
        return Term("gradients", 0, "in the communication buckets")
    is_full = training.strategy in ("single", "ddp", "zero1") or training.processes == 1
    spread = "" if is_full else f", sharded over {training.processes} GPUs"
    count = trained if is_full else trained // training.processes
    if training.half:
        if training.offload_optimizer and training.strategy != "zero1":
            return Term("gradients", 0, "in host memory")
        summed = 2 if training.strategy == "zero1" else training.summed
        return Term("gradients", summed * count, f"{'bfloat16' if summed == 2 else 'float32'}{spread}")
    element = training.trained_element
    return Term("gradients", element * count, f"{element} bytes for each trained weight{spread}")


def _optimizer_step_terms(model: Architecture, training: Training) -> Iterable[Term]:
    if training.half and not training.offload_optimizer:
        count = trained_parameters(model, training) // training.processes
        if training.strategy == "zero3":
            count = min(count, SUB_GROUP_SIZE)
        # Stage 2 steps on its float32 sums; stage 3 concatenates slices of them.
        if training.strategy != "zero2" or training.summed == 2:
            yield Term("gradients in float32", 4 * count, "for the step of the float32 copy")
        # DeepSpeed uses torch's unfused AdamW, which computes the roots of all second moments at once.
        yield Term("AdamW workspace", 4 * count, "the roots of the second moments")


def _saved_activations(model: Architecture, training: Training) -> Term:
    rows = training.micro_batch * training.tokens
    # The final norm: input in float32, normalised input, output.
    ends = rows * model.hidden * (4 + training.stream * (2 if training.adapter is None else 1))
    if training.checkpointing:
        size = model.layers * rows * model.hidden * training.stream + ends
        return Term("activations", size, "the input of each block (gradient checkpointing)")
    return Term("activations", model.layers * block_activations(model, training) + ends, "of every block")


def _recomputed_block(model: Architecture, training: Training) -> Term:
    work = _activation_gradients(model, training).bytes
    return Term(
        "recomputed block",
        block_activations(model, training) + work,
        "recomputed in the backward pass, with its gradients",
    )


def _activation_gradients(model: Architecture, training: Training) -> Term:
    per_token = 2 * training.compute * model.intermediate + 2 * training.stream * model.hidden
    return Term("gradients of activations", training.micro_batch * training.tokens * per_token, "of one block")


def _autocast_copies(model: Architecture, training: Training, weights: int, blocks: str) -> Term:
    """Estimate autocast's bfloat16 copies of float32 weights, cached until the forward pass ends."""
    stored = training.stream
    quantized = training.adapter is not None and training.adapter.quantized
    size = 0 if stored == training.compute or quantized else training.compute * weights
    return Term("weights in bfloat16", size, f"autocast's copies of {blocks}")


def _head_terms(model: Architecture, training: Training) -> tuple[Term, Term]:
    """Estimate the head without hidden states, at the end of the forward and the start of the backward pass."""
    if training.supervised:
        return _tiled_head_terms(model, training)
    b, v, h = training.micro_batch, model.vocabulary, model.hidden
    frozen = training.adapter is not None
    gathered = not frozen and training.accumulates
    weight_gradient = 0 if frozen else 4 * v * h
    rows = b * training.completion_tokens
    at_once = min(rows, max(1, (MAX_GPU_LOGITS if training.gpu else MAX_LOGITS) // v))
    # Logits in the format of the arithmetic, and in float32.
    logits = (4 + (training.compute if training.compute != 4 else 0)) * at_once * v
    selected = training.stream * rows * h
    again = ", recomputed in the backward pass" if at_once < rows else ""
    forward = Term("head", 2 * logits + selected, f"logits of {at_once:,} tokens and their exponentials{again}")
    # The gradient of the weight is added to that of earlier forward passes, or of earlier slices of this one.
    added = weight_gradient if gathered or at_once < rows else 0
    backward = Term(
        "head", 2 * logits + selected + 4 * rows * h + added, "logits, their gradients and that of the head"
    )
    return forward, backward


def _tiled_head_terms(model: Architecture, training: Training) -> tuple[Term, Term]:
    """Estimate TRL's tiled head, which supervised fine-tuning uses."""
    b, length, v, h = training.micro_batch, training.tokens, model.vocabulary, model.hidden
    frozen = training.adapter is not None
    weight_gradient = 0 if frozen else 4 * v * h
    if not training.gpu:
        rows = b * (length - 1)
        tile = min(rows, TILE_TOKENS) * min(v, TILE_WORDS)
        buffer = 4 * min(rows, TILE_TOKENS) * TILE_WORDS
        # Seven float32 tensors of a tile at once in the backward pass, and a boolean one.
        forward = Term("head", buffer + 3 * 4 * tile, "TRL's tiles in float32, and their temporaries")
        backward = Term(
            "head", buffer + 29 * tile + 4 * rows * h + weight_gradient, "tiles and float32 gradients of the head"
        )
        return forward, backward
    rows = b * training.completion_tokens
    buffer = training.compute * min(rows, TILE_TOKENS) * TILE_WORDS
    words = training.compute * min(v, TILE_WORDS) * h if training.stream != training.compute else 0
    selected = training.stream * rows * h
    forward = Term("head", buffer + words + selected, "TRL's tiles of 4096 tokens x 32768 words")
    backward = Term(
        "head",
        buffer + words + selected + 4 * rows * h + weight_gradient,
        "tiles, and float32 gradients of hidden states and of the head's weight",
    )
    return forward, backward


def _sampling_terms(
    model: Architecture, training: Training, sampling: Sampling, gpu_bytes: int, room: int
) -> Iterable[Term]:
    """Estimate sampling in ``room`` bytes of the GPU, left by the states."""
    # Gathered weights are in the compute dtype.
    element = training.compute if training.gathers else training.stream
    v, length, engine = model.vocabulary, training.tokens, sampling.engine
    full_weights = []
    use = "to load into vLLM" if engine.startswith("vllm") else "for sampling"
    if training.gathers and engine != "none":
        full_weights.append(Term("gathered weights", element * model.parameters, f"all of them at once, {use}"))
    if training.adapter is not None and engine not in ("none", "transformers"):
        adapter = training.adapter
        # Layers in 4 bits are merged in the dtype of the other weights.
        merged = model.linear_parameters(None if adapter.quantized else adapter.targets)
        size = (training.weights if adapter.quantized else element) * merged
        full_weights.append(Term("merged weights", size, f"a second copy of the adapted layers, {use}"))
    yield from full_weights
    if engine == "vllm_colocate" and sampling.sleeps:
        yield _vllm_term(sampling, gpu_bytes)
    elif engine == "local":
        yield from _local_sampler_terms(model, training, sampling, element, room - _total_bytes(full_weights))
    elif engine == "transformers":
        rows = min(sampling.rows, sampling.batch or TRANSFORMERS_ROWS)
        # A block's cache is copied to grow.
        cache = rows * length * model.kv_bytes_per_token(element) * (model.layers + 1) // model.layers
        yield Term("keys and values", cache, f"{rows} rows of {length} tokens, {element} bytes per element")
        scored = max(1, SCORED_LOGITS // (length * v)) * length * v
        yield Term("scored logits", 3 * 4 * min(scored, rows * length * v), "log-probabilities of the completions")


def _vllm_term(sampling: Sampling, gpu_bytes: int) -> Term:
    share = round(sampling.gpu_memory * gpu_bytes)
    held = "while it samples (rollout.vllm.sleep)" if sampling.sleeps else "throughout"
    return Term(
        "vLLM", share, f"its weights and cache, {held}: rollout.vllm.gpu_memory={sampling.gpu_memory:g} of the GPU"
    )


def vllm_shortage(
    model: Architecture, training: Training, sampling: Sampling, gpu_bytes: int
) -> dict[str, float] | None:
    """Return vLLM's `share` and its `weights` in bytes, and the `least` gpu_memory, if the share cannot hold them."""
    if sampling.engine != "vllm_colocate":
        return None
    share, weights = round(sampling.gpu_memory * gpu_bytes), training.compute * model.parameters
    if share >= weights:
        return None
    # 10% more for the keys and values of a few rows.
    return {"share": share, "weights": weights, "least": math.ceil(20 * 1.1 * weights / gpu_bytes) / 20}


def _local_sampler_terms(
    model: Architecture, training: Training, sampling: Sampling, element: int, room: int
) -> Iterable[Term]:
    length, memory = training.tokens, planned_row_memory(model, element, gpu=training.gpu)
    rows = rows_at_once(memory, training, sampling, room)
    at_once = f"{rows} of {sampling.rows} rows at once" if rows < sampling.rows else f"{rows} rows"
    yield Term(
        "keys and values", rows * length * memory.kv_token, f"{at_once}, {length} tokens, {element} bytes per element"
    )
    logits = rows * memory.logits(sorts=sampling.sorts)
    yield Term("logits of a step", logits, f"{rows} rows")
    # Freed before the first logits are computed.
    prefill = max(0, _prefill_bytes(memory, training, sampling, rows) - logits)
    yield Term("prefill of prompts", prefill, f"at most {PREFILL_TOKENS} tokens at once")


def rows_at_once(memory: RowMemory, training: Training, sampling: Sampling, room: int) -> int:
    """Return the number of completions that the local sampler decodes at once in ``room`` free bytes."""
    if sampling.batch is not None:
        return min(sampling.rows, sampling.batch)
    limit = min(sampling.rows, MAX_ROWS) if training.gpu else sampling.rows
    free = USABLE_SHARE * max(0, room) - _prefill_bytes(memory, training, sampling, sampling.rows)
    return memory.rows(limit, free, training.tokens, sorts=sampling.sorts)


def planned_row_memory(model: Architecture, element: int, *, gpu: bool) -> RowMemory:
    heads, kv_heads, dim = model.heads, model.kv_heads, model.head_dim
    return RowMemory(
        kv_token=model.kv_bytes_per_token(element),
        activation_token=activation_bytes(model.hidden, model.intermediate, heads, kv_heads, dim, element),
        vocabulary=model.vocabulary,
        scores=heads if gpu and element == 4 else 0,
    )


def _prefill_bytes(memory: RowMemory, training: Training, sampling: Sampling, rows: int) -> int:
    return memory.prompts(-(-rows // sampling.group) * training.prompt_tokens, training.prompt_tokens)


def _host_term(model: Architecture, training: Training) -> Term:
    """Estimate the host memory of a process, for loading the model, offloaded states or earlier weights."""
    if not training.gpu:
        return Term("host", 0, "")
    quantized = training.adapter is not None and training.adapter.quantized
    # A model to be sharded stays on the host until its reference is loaded.
    copies = 2 if training.strategy not in ("single", "ddp") and training.reference and training.adapter is None else 1
    loading = 0 if quantized else copies * training.weights * model.parameters
    # The float32 copy, two moments, gradients and their sums.
    offloaded = (16 + training.summed) * trained_parameters(model, training) * training.offload_optimizer
    offloaded += 2 * model.parameters * training.offload_weights
    if offloaded // training.processes > loading:
        return Term("host", offloaded // training.processes, "offloaded states")
    if (past := _past_bytes(model, training)) > loading:
        return Term("host", past, f"{training.past} copies of the weights, for rollout.behind")
    return Term("host", loading, "while the model is loaded")


def _past_bytes(model: Architecture, training: Training) -> int:
    return training.past * training.trained_element * trained_parameters(model, training)


def _total_bytes(terms: Iterable[Term]) -> int:
    return sum(term.bytes for term in terms)
