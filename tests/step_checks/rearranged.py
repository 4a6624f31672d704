"""Right answers that are arranged otherwise than the lesson's: (stage, {step: text})."""

OTHER_ORDER = '''
tiles = tl.cdiv(N, BLOCK_M)
heads = tl.num_programs(0) // tiles
bh = (tl.program_id(0) % heads).to(tl.int64)
start_m = tl.program_id(0) // heads * BLOCK_M
b = bh // HQ
h = bh - b * HQ
query = tl.arange(0, BLOCK_M) + start_m
'''
ALL_MASKED = '''
for start_n in range(0, N, BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N,
                            scale * LOG2E, D, BLOCK_N, MASKED=True)
'''
BARE_WALK = ALL_MASKED.replace(" * LOG2E", "")
BACKWARDS = '''
whole = N // BLOCK_N * BLOCK_N
if N > whole:
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, whole, N, LOG2E * scale,
                            D, BLOCK_N, True)
for i in range(0, whole // BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, whole - (i + 1) * BLOCK_N, N,
                            LOG2E * scale, D, BLOCK_N, False)
'''
NATURAL_SOFTMAX = '''
top = tl.max(s, 1) * scale_log2e
m_new = tl.maximum(m_i, top)
p = tl.exp(s * scale_log2e - m_new[:, None])
alpha = tl.exp(m_i - m_new)
l_i = l_i * alpha + tl.sum(p, 1)
acc = acc * alpha[:, None]
acc += tl.dot(p.to(v.dtype), v)
'''
INNER_LOG2E = NATURAL_SOFTMAX.replace("tl.exp(", "tl.math.exp2(").replace(
    "scale_log2e", "(scale_log2e * LOG2E)")
NATURAL_FINISH = '''
o = acc / l_i[:, None]
_store(o_ptr, o, bh, query, N, D)
row = bh * N + query
tl.store(lse_ptr + row, m_i + tl.log(l_i), mask=query < N)
'''
OWN_STORE = '''
j = tl.arange(0, acc.shape[1])
tl.store(o_ptr + (bh * N + query)[:, None] * D + j[None, :], acc / l_i[:, None],
         mask=(query < N)[:, None] & (j < D)[None, :])
tl.store(lse_ptr + bh * N + query, m_i * LN2 + tl.log(l_i), mask=query < N)
'''
SCALED_SCORES = '''
s = tl.dot(q, tl.trans(k)) * scale_log2e
if MASKED:
    s = tl.where(keep, s, -1.0e30)
'''
ON_SCALED_SCORES = '''
m_new = tl.maximum(m_i, tl.max(s, axis=1))
p = tl.math.exp2(s - m_new[:, None])
alpha = tl.math.exp2(m_i - m_new)
l_i = alpha * l_i + tl.sum(p, axis=1)
acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
'''
CAUSAL_BACKWARDS = '''
for start_n in range(start_m, start_m + BLOCK_M, BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale * LOG2E,
                            D, BLOCK_N, MASKED=True)
for start_n in range(0, start_m, BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_m - BLOCK_N - start_n, N,
                            scale * LOG2E, D, BLOCK_N, MASKED=False)
'''

LEFT_TO_RIGHT = '''
for start_n in range(0, start_m + BLOCK_M, BLOCK_N):
    if start_n + BLOCK_N + window_size > start_m:
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                scale * LOG2E, D, BLOCK_N, MASKED=True)
'''
LOOSE = '''
first = 0
inner = tl.cdiv(tl.maximum(start_m + BLOCK_M - window_size, 0), BLOCK_N) * BLOCK_N
inner = tl.minimum(inner, start_m)
'''
UNCLAMPED = '''
first = (start_m - window_size + 1) // BLOCK_N * BLOCK_N
inner = tl.cdiv(start_m + BLOCK_M - window_size, BLOCK_N) * BLOCK_N
'''
CLAMPING = '''
begin = tl.maximum(tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N, first)
whole = tl.minimum(tl.maximum(inner, begin), start_m)
for start_n in range(begin, whole, BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                            scale * LOG2E, D, BLOCK_N, MASKED=True)
for start_n in range(whole, start_m, BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                            scale * LOG2E, D, BLOCK_N, MASKED=False)
for start_n in range(start_m, start_m + BLOCK_M, BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                            scale * LOG2E, D, BLOCK_N, MASKED=True)
'''
FINITE = '''
m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
seen = tl.where(m_new > -1e30, m_new, 0.0)
p = tl.where(s > -1e30, tl.math.exp2(s * scale_log2e - seen[:, None]), 0.0)
alpha = tl.where(m_i > -1e30, tl.math.exp2(m_i - seen), 1.0)
l_i = l_i * alpha + tl.sum(p, 1)
acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
'''

REARRANGED = [
    (3, {"3.1": OTHER_ORDER}),
    (3, {"3.2": ALL_MASKED}),
    (3, {"3.2": BACKWARDS}),
    (3, {"3.6": "keep = (key < N) & (query < N)"}),
    (3, {"3.6": "keep = N > key + 0 * query"}),
    (3, {"3.2": BARE_WALK, "3.5": NATURAL_SOFTMAX, "3.3": NATURAL_FINISH}),
    (3, {"3.2": BARE_WALK, "3.5": INNER_LOG2E}),
    (3, {"3.3": OWN_STORE}),
    (3, {"3.4": SCALED_SCORES, "3.5": ON_SCALED_SCORES}),
    (3, {"3.4": "s = tl.where(keep, tl.dot(q, k.T), float('-inf'))"}),
    (3, {"3.7": '''
rows, columns = start + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
ptrs = ptr + tl.arange(0, ROWS)[:, None] * stride_n + columns[None, :] * stride_d
tile = tl.load(ptrs, mask=(rows < N)[:, None] & (columns < D)[None, :], other=0.0)'''}),
    (3, {"3.8": '''
columns = tl.arange(0, tile.shape[1])
tl.store(ptr + bh * N * D + rows[:, None] * D + columns[None, :], tile,
         mask=(rows < N)[:, None] & (columns < D)[None, :])'''}),
    (4, {"4.1": OTHER_ORDER}),
    (4, {"4.2": CAUSAL_BACKWARDS.replace("start_m - BLOCK_N - start_n", "start_n")}),
    (4, {"4.2": ALL_MASKED.replace("range(0, N,", "range(0, start_m + BLOCK_M,")}),
    (4, {"4.6": "keep = ~(key > query)"}),
    (4, {"4.2": BARE_WALK.replace("range(0, N,", "range(0, start_m + BLOCK_M,"),
         "4.5": NATURAL_SOFTMAX, "4.3": NATURAL_FINISH}),
    (5, {"5.2": '''
group = HQ // HKV
kv = h // group
k_head = _head(k_ptr, k_strides, b, kv)
v_head = v_ptr + b * v_strides[0] + kv * v_strides[1], v_strides[2], v_strides[3]'''}),
    (5, {"5.2": "k_head = _head(k_ptr, k_strides, b, h * HKV // HQ)\n"
                "v_head = _head(v_ptr, v_strides, b, h * HKV // HQ)"}),
    (6, {"6.4": LEFT_TO_RIGHT}),
    (6, {"6.3": LOOSE}),
    (6, {"6.3": UNCLAMPED, "6.4": CLAMPING}),
    (6, {"6.7": FINITE}),
    (6, {"6.8": "keep = (key <= query) & (key > query - window_size)"}),
    (7, {"7.8": "keep = (key <= query) & ((key + window_size > query) | (sink_size > key))"}),
    (7, {"7.4": LEFT_TO_RIGHT.replace("window_size > start_m", "window_size > 0").replace(
        "window_size,\n", "window_size, sink_size,\n")}),
    (1, {"1.2": "end = NK\nif is_causal:\n    end = min(NK, start_m + BLOCK_M)"}),
    (1, {"1.2": "end = NK"}),
    (1, {"1.3": "m_new = torch.maximum(m_i, s.max(-1).values)\nalpha = (m_i - m_new).exp()\n"
                "weights = torch.exp(s - m_new.unsqueeze(-1))\np = weights",
         "1.4": "acc = acc * alpha.unsqueeze(-1)\nacc = acc + torch.matmul(p, v_tile)\n"
                "l_i = l_i * alpha + p.sum(3)"}),
    (1, {"1.3": "m_new = torch.maximum(m_i, s.amax(-1))\np = torch.exp(s - m_new[..., None])\n"
                "alpha = m_i - m_new",
         "1.4": "l_i = torch.exp(alpha) * l_i + p.sum(-1)\n"
                "acc = torch.exp(alpha)[..., None] * acc + p @ v_tile"}),
    (2, {"2.2": '''
inside = mask_m[:, None] & mask_n[None, :]
x = tl.load(x_ptr + offs_m[:, None] * stride_xm + offs_n * stride_xn, inside, 0.0).to(tl.float32)
w = tl.load(w_ptr + offs_n * stride_wn, mask_n, 0.0).to(tl.float32)''',
         "2.3": "acc = acc + tl.sum(x * w, 1)"}),
    (2, {"2.1": "offs_m = BLOCK_M * tl.program_id(0) + tl.arange(0, BLOCK_M)\n"
                "offs_m = offs_m.to(tl.int64)\nmask_m = M > offs_m"}),
    (2, {"2.6": '''
launch = dict(BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4)
if ctx.needs_input_grad[0]:
    dx = x.new_empty((M, N))
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)
    _dx_kernel[grid](dy, w, dx, M, N, dy.stride(0), w.stride(0), *dx.stride(), **launch)
if ctx.needs_input_grad[1]:
    dw = torch.empty_like(w)
    _dw_kernel[(grid_n,)](dy, x, dw, M, N, dy.stride(0), *x.stride(), **launch)'''}),
    (8, {"8.3": '''
if CAUSAL:
    end = start_m + BLOCK_M
else:
    end = N
for start_n in range(0, end, BLOCK_N):
    acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N,
                            scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)'''}),
    (8, {"8.9": "delta = tl.sum(o.to(tl.float32) * do, 1)\n"
                "tl.store(delta_ptr + (bh * N + query), delta, query < N)"}),
    (8, {"8.11": "s = tl.dot(q, tl.trans(k))\n"
                 "p = tl.math.exp2(s * scale_log2e - lse_log2[:, None])\n"
                 "p = tl.where(keep, p, 0.0)"}),
    (8, {"8.11": "s = tl.where(keep, tl.dot(q, tl.trans(k)), float('-inf'))\n"
                 "p = tl.exp((s * scale_log2e - lse_log2[:, None]) * LN2)"}),
    (8, {"8.12": "dp = tl.dot(do, tl.trans(v))\nds = p * dp - p * delta[:, None]\n"
                 "dq += tl.dot(ds.to(k.dtype), k)"}),
    (8, {"8.14": "first = start_n\ninner = start_n + BLOCK_N\nouter = (N // BLOCK_M) * BLOCK_M\n"
                 "if not CAUSAL:\n    first = 0\n    inner = 0\nouter = tl.maximum(inner, outer)"}),
    (8, {"8.15": '''
for start_m in range(first, N, BLOCK_M):
    dk, dv = _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, key,
                       start_m, N, scale * LOG2E, D, BLOCK_M, CAUSAL, MASKED=True)'''}),
    (8, {"8.18": "keep = key < N\nif CAUSAL:\n    keep = keep & (query >= key) & (query < N)"}),
    (9, {"9.3": "m_i += sink * LOG2E\nm_i = tl.full(m_i.shape, 0.0, tl.float32) + sink * LOG2E\n"
                "l_i = tl.full(l_i.shape, 1.0, tl.float32)"}),
    (9, {"9.11": "weight = tl.exp(sink - lse_log2 * LN2)\ndsink = tl.sum(-weight * delta, 0)"}),
    (9, {"9.12": '''
for start_n in range(0, N, BLOCK_N):
    dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, N, window_size,
                 sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)
_store(dq_ptr, scale * dq, bh, query, N, D)'''}),
    (9, {"9.21": "keep = key < N\nif CAUSAL:\n"
                 "    near = key > query - window_size\n"
                 "    keep = (key <= query) & (near | (key < sink_size))"}),
]
