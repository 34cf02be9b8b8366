/* Sums of the double. 16-bit floats are widened, summed, and rounded once. Part of tests/doubles/sharp_coll.c. */
/* ---- sums, in the order of ranks ---- */

static float wide(uint16_t bits, int brain) {
    uint32_t u;
    float f;
    if (brain) u = (uint32_t)bits << 16;
    else {
        _Float16 h;
        memcpy(&h, &bits, 2);
        return (float)h;
    }
    memcpy(&f, &u, 4);
    return f;
}

static uint16_t narrow(float f, int brain) {
    uint16_t bits;
    if (!brain) {
        _Float16 h = (_Float16)f;
        memcpy(&bits, &h, 2);
        return bits;
    }
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#define ONE(op, a, b) ((op) == SHARP_OP_SUM ? (a) + (b) : (op) == SHARP_OP_MAX ? ((b) > (a) ? (b) : (a)) : (b) < (a) ? (b) : (a))
#define ALL(type)                                                                        \
    {                                                                                    \
        type *to = into;                                                                 \
        memcpy(to, from, n * sizeof *to);                                                \
        for (int r = 1; r < ranks; r++) {                                                \
            const type *next = (const type *)(from + (size_t)r * room);                  \
            if (op == SHARP_OP_SUM) for (size_t i = 0; i < n; i++) to[i] = (type)(to[i] + next[i]); \
            else for (size_t i = 0; i < n; i++) to[i] = (type)ONE(op, to[i], next[i]);   \
        }                                                                                \
        break;                                                                           \
    }

static size_t bytes_of(int dtype) {
    static const size_t sizes[] = { 4, 4, 8, 8, 4, 8, 2, 2, 2, 2, 1, 1 };
    return dtype >= 0 && dtype < 12 ? sizes[dtype] : 0;
}

static void reduce(void *into, const char *from, size_t room, int ranks, size_t n, int dtype, int op) {
    switch (dtype) {
    case SHARP_DTYPE_UNSIGNED: ALL(uint32_t)
    case SHARP_DTYPE_INT: if (op == SHARP_OP_SUM) ALL(uint32_t) else ALL(int32_t)
    case SHARP_DTYPE_UNSIGNED_LONG: ALL(uint64_t)
    case SHARP_DTYPE_LONG: if (op == SHARP_OP_SUM) ALL(uint64_t) else ALL(int64_t)
    case SHARP_DTYPE_FLOAT: ALL(float)
    case SHARP_DTYPE_DOUBLE: ALL(double)
    case SHARP_DTYPE_UNSIGNED_SHORT: ALL(uint16_t)
    case SHARP_DTYPE_SHORT: ALL(int16_t)
    case SHARP_DTYPE_UINT8: ALL(uint8_t)
    case SHARP_DTYPE_INT8: ALL(int8_t)
    default:
        for (size_t i = 0; i < n; i++) {
            int brain = dtype == SHARP_DTYPE_BFLOAT16;
            float sum = wide(((const uint16_t *)from)[i], brain);
            for (int r = 1; r < ranks; r++) {
                float next = wide(((const uint16_t *)(from + (size_t)r * room))[i], brain);
                sum = ONE(op, sum, next);
            }
            ((uint16_t *)into)[i] = narrow(sum, brain);
        }
    }
}
