// Slices and concatenations of wide values that touch only the words they need.
//
// CXXRTL shifts a whole value down to read a bit of it, and up for each part that it appends, and compilers
// keep those loops. Buses and records of this design have 500 bits, so these specializations of its templates
// are most of the speed, and less to compile. They say the same.

#ifndef RTL_SLICES_H
#define RTL_SLICES_H
#include <cxxrtl/cxxrtl.h>

namespace cxxrtl {

template<size_t Stop, size_t Start, size_t Bits>
CXXRTL_ALWAYS_INLINE value<Stop - Start + 1> slice_of(const value<Bits> &whole) {
    constexpr size_t word_bits = value<Bits>::chunk::bits, first = Start / word_bits, shift = Start % word_bits;
    value<Stop - Start + 1> part;
    for (size_t n = 0; n < part.chunks; n++) {
        part.data[n] = whole.data[first + n] >> shift;
        if (shift != 0 && (first + n + 1) * word_bits <= Stop)
            part.data[n] |= whole.data[first + n + 1] << (word_bits - shift);
    }
    part.data[part.chunks - 1] &= part.msb_mask;
    return part;
}

template<size_t Bits, size_t Stop, size_t Start>
struct slice_expr<const value<Bits>, Stop, Start> : expr_base<slice_expr<const value<Bits>, Stop, Start>> {
    static constexpr size_t bits = Stop - Start + 1;
    const value<Bits> &expr;

    slice_expr(const value<Bits> &expr) : expr(expr) {}
    slice_expr(const slice_expr &) = delete;

    CXXRTL_ALWAYS_INLINE operator value<bits>() const { return slice_of<Stop, Start>(expr); }
    CXXRTL_ALWAYS_INLINE value<bits> val() const { return slice_of<Stop, Start>(expr); }
};

template<size_t Bits, size_t Stop, size_t Start>
struct slice_expr<value<Bits>, Stop, Start> : expr_base<slice_expr<value<Bits>, Stop, Start>> {
    static constexpr size_t bits = Stop - Start + 1;
    value<Bits> &expr;

    slice_expr(value<Bits> &expr) : expr(expr) {}
    slice_expr(const slice_expr &) = delete;

    CXXRTL_ALWAYS_INLINE operator value<bits>() const { return slice_of<Stop, Start>(expr); }
    CXXRTL_ALWAYS_INLINE value<bits> val() const { return slice_of<Stop, Start>(expr); }
    CXXRTL_ALWAYS_INLINE slice_expr &operator=(const value<bits> &part) {
        expr = expr.template blit<Stop, Start>(part);
        return *this;
    }
};

// Put a value, or the parts of a concatenation one by one, at a bit of `whole` where zeros are.
template<size_t At, size_t Whole, size_t Bits>
CXXRTL_ALWAYS_INLINE void put(value<Whole> &whole, const value<Bits> &part) {
    constexpr size_t word_bits = value<Bits>::chunk::bits, first = At / word_bits, shift = At % word_bits;
    for (size_t n = 0; n < part.chunks; n++) {
        whole.data[first + n] |= part.data[n] << shift;
        if (shift != 0 && (first + n + 1) * word_bits < At + Bits)
            whole.data[first + n + 1] |= part.data[n] >> (word_bits - shift);
    }
}

template<size_t At, size_t Whole, class T, size_t Stop, size_t Start>
CXXRTL_ALWAYS_INLINE void put(value<Whole> &whole, const slice_expr<T, Stop, Start> &part) {
    put<At>(whole, part.val());
}

template<size_t At, size_t Whole, class T, class U>
CXXRTL_ALWAYS_INLINE void put(value<Whole> &whole, const concat_expr<T, U> &parts) {
    put<At>(whole, parts.ls_expr);
    put<At + U::bits>(whole, parts.ms_expr);
}

// Set a value, or the parts of a concatenation one by one, to what is at a bit of `whole`.
template<size_t At, size_t Whole, size_t Bits>
CXXRTL_ALWAYS_INLINE void take(value<Bits> &part, const value<Whole> &whole) {
    part = slice_of<At + Bits - 1, At>(whole);
}

template<size_t At, size_t Whole, class T, size_t Stop, size_t Start>
CXXRTL_ALWAYS_INLINE void take(slice_expr<T, Stop, Start> &part, const value<Whole> &whole) {
    part = slice_of<At + Stop - Start, At>(whole);
}

template<size_t At, size_t Whole, class T, class U>
CXXRTL_ALWAYS_INLINE void take(concat_expr<T, U> &parts, const value<Whole> &whole) {
    take<At>(parts.ls_expr, whole);
    take<At + U::bits>(parts.ms_expr, whole);
}

template<class T, class U, class V>
struct concat_expr<concat_expr<T, U>, V> : expr_base<concat_expr<concat_expr<T, U>, V>> {
    static constexpr size_t bits = T::bits + U::bits + V::bits;
    concat_expr<T, U> &ms_expr;
    V &ls_expr;

    concat_expr(concat_expr<T, U> &ms_expr, V &ls_expr) : ms_expr(ms_expr), ls_expr(ls_expr) {}
    concat_expr(const concat_expr &) = delete;

    CXXRTL_ALWAYS_INLINE operator value<bits>() const { return val(); }
    CXXRTL_ALWAYS_INLINE value<bits> val() const {
        value<bits> whole;
        put<0>(whole, *this);
        return whole;
    }
    CXXRTL_ALWAYS_INLINE concat_expr &operator=(const value<bits> &whole) {
        take<0>(*this, whole);
        return *this;
    }
};

}  // namespace cxxrtl
#endif
