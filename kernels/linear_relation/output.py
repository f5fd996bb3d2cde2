"""The forward pass: every chunk reads the state it meets and the tokens before it in the chunk."""

import triton
import triton.language as tl

from relation.kernels.linear_relation.decays import (
    decays_at_level,
    load_retention,
    pairs_in_blocks,
    product,
    sum_steps,
)
from relation.kernels.linear_relation.tiles import (
    all_taken,
    chunk_of_program,
    load_selves,
    load_state,
    load_tokens,
    offset_of,
    states_of_chunk,
    store_tokens,
)


@triton.jit(do_not_specialize=["T", "chunks", "all_chunks", "segment_chunks", "segments"])
def output_kernel(
    p1, p2, info, log_retention, selves, kinds, exponents, within, log_decay, entry, y,
    stride_p1_b, stride_p1_h, stride_p1_t, stride_p1_d,
    stride_p2_b, stride_p2_h, stride_p2_t, stride_p2_d,
    stride_info_b, stride_info_h, stride_info_t, stride_info_d,
    stride_g_b, stride_g_h, stride_g_t, stride_g_d,
    stride_y_b, stride_y_h, stride_y_t, stride_y_d,
    H, T, chunks, all_chunks, segment_chunks, segments,
    PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    GROUP: tl.constexpr, ALIGNED: tl.constexpr, SKIP_TAKEN: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    if SKIP_TAKEN and all_taken(kinds, chunks, all_chunks, SHARE):
        return
    t = tl.arange(0, CHUNK)
    for turn in tl.range(0, SHARE, disable_licm=True):
        index = chunk_of_program(turn, chunks)
        is_taken = tl.load(kinds + index, mask=index < all_chunks, other=1) != 0
        if (index < all_chunks) & (not (SKIP_TAKEN and is_taken)):
            head, chunk = index // chunks, index % chunks
            t_start = chunk * CHUNK
            p1_head = p1 + offset_of(head, H, stride_p1_b, stride_p1_h, ALIGNED)
            p2_head = p2 + offset_of(head // GROUP, H // GROUP, stride_p2_b, stride_p2_h, ALIGNED)
            info_head = info + offset_of(
                head // GROUP, H // GROUP, stride_info_b, stride_info_h, ALIGNED
            )
            g_head = log_retention + offset_of(head, H, stride_g_b, stride_g_h, ALIGNED)
            y_head = y + offset_of(head, H, stride_y_b, stride_y_h, ALIGNED)
            head = tl.cast(head, tl.int64)
            here, segment, own_past, _ = states_of_chunk(
                chunk, head, chunks, segment_chunks, segments, D
            )
            S, inverse_norm1, inverse_norm2 = load_selves(selves, head, t_start, T, CHUNK)
            scores = tl.zeros([CHUNK, CHUNK], tl.float32)
            for d_start in range(0, D, BLOCK_D):
                p1_d = load_tokens(
                    p1_head, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D
                )
                p2_d = load_tokens(
                    p2_head, t_start, T, stride_p2_t, d_start, stride_p2_d, D, CHUNK, BLOCK_D
                )
                g = load_retention(
                    g_head, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D
                )
                read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None]
                write = p2_d.to(tl.float32) * (S * inverse_norm2)[:, None]
                level = LEVELS - 1
                while level >= 0:
                    read_decay, write_decay, complete = decays_at_level(g, level, PRECISION, CHUNK)
                    new = product(read * read_decay, tl.trans(write * write_decay), PRECISION)
                    scores += tl.where(pairs_in_blocks(t[:, None], t[None, :], level), new, 0.0)
                    level = tl.where(complete, -1, level - 1)

            for v_start in range(0, D, BLOCK_V):
                info_v = load_tokens(
                    info_head, t_start, T, stride_info_t, v_start, stride_info_d, D, CHUNK, BLOCK_V
                )
                y_v = info_v.to(tl.float32) + product(scores, info_v, PRECISION)
                for d_start in range(0, D, BLOCK_D):
                    p1_d = load_tokens(
                        p1_head, t_start, T, stride_p1_t, d_start, stride_p1_d, D, CHUNK, BLOCK_D
                    )
                    g = load_retention(
                        g_head, t_start, T, stride_g_t, d_start, stride_g_d, D, CHUNK, BLOCK_D
                    )
                    since_start = sum_steps(t[None, :] <= t[:, None], g, PRECISION)
                    if (v_start == 0) & (not is_taken):
                        # The states have read what lay there; those backward need G(0, t).
                        store_tokens(
                            exponents + head * T * D, since_start, t_start, T, D, d_start, 1,
                            D, CHUNK, BLOCK_D,
                        )  # fmt: skip
                    read = p1_d.to(tl.float32) * (S * inverse_norm1)[:, None] * tl.exp(since_start)
                    past = load_state(
                        within + here * D * D, log_decay + here * D, entry + segment * D * D,
                        own_past, d_start, v_start, D, BLOCK_D, BLOCK_V,
                    )  # fmt: skip
                    y_v += product(read, past, PRECISION)
                store_tokens(
                    y_head, y_v, t_start, T, stride_y_t, v_start, stride_y_d, D, CHUNK, BLOCK_V
                )
