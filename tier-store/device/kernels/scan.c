// Scan, filter, star join and partial aggregation in one pass: nothing but groups leaves a kernel.
//
// LANES threads share a tile. Each has the 32 rows whose places `position()` gives, the order in which the FastLanes layout
// unpacks, and reads them column by column, BATCH at a time. Masks have one bit for each row of a thread, or of a batch.
//
// The threads of a warp take the same branches: what differs between them are masks, and loads that a mask predicates.
// A branch around a load lets a thread wait for one load at a time (measured on an H200: 12 times slower).
#include "program.h"

// The place in a tile of a thread's row, 0 to 31, without the lane.
INLINE u32 position(u32 row) { return (row & 7) << 7 | (row & 8) << 3 | (row & 16) << 1; }

// Where a thread reads.
typedef struct {
    const Program* program;
    const Column* columns;  // of the chunk
    u32 tile;               // in its chunk
    u32 lane;
} Place;

// What lies at a place of a program.
#define PART(program, type, place) ((const type*)((const u8*)(program) + (place)))

INLINE const Join* join_of(const Place* place, u32 source) {
    return PART(place->program, Join, place->program->joins) + (source - 1);
}

// The number that begins at `bit` of a thread's lane. Reads up to two words more than there are: the column is padded.
INLINE u32 unpack(u64 words, u32 bit, u32 mask, u32 wanted) {
    u64 at = words + bit / 32 * (LANES * sizeof(u32));
    return funnel(load_u32(at, wanted), load_u32(at + LANES * sizeof(u32), wanted), bit % 32) & mask;
}

INLINE u32 low_bits(u32 bits) { return bits ? 0xffffffffu >> (32 - bits) : 0; }

// Rows of a thread that are read together: their places in the chunk, and their places in the tile without the lane.
typedef struct {
    u32 at[BATCH];
    u32 row[BATCH];
} Batch;

// Takes rows from those that are left. Gives a bit for each row of the batch. Few rows are taken wherever they are;
// of many, the threads of a warp take the same ones, which lie side by side: `start` is the first one.
INLINE u32 take_batch(const Place* place, u32* left, u32 is_dense, u32 start, Batch* batch) {
    u32 first = place->tile * TILE + place->lane, want = 0;
    if (is_dense) {
        want = *left >> start & ((1u << BATCH) - 1);
        *left &= ~(((1u << BATCH) - 1) << start);
        // The rows of a batch are of the same octet, 128 apart.
        first += position(start);
        UNROLL for (u32 i = 0; i < BATCH; i++) {
            batch->row[i] = start + i;
            batch->at[i] = first + i * 128;
        }
    } else {
        UNROLL for (u32 i = 0; i < BATCH; i++) {
            want |= (u32)(*left != 0) << i;
            batch->row[i] = lowest(*left);
            batch->at[i] = first + position(batch->row[i]);
            *left &= *left - 1;
        }
    }
    return want;
}

// True if rows are to be taken in order. Taking them wherever they are saves batches, but touches more cache lines at a
// time: it pays while no thread of the warp has more than SPARSE of its 32 rows left.
INLINE u32 is_dense(u32 rows) { return ANY(count_bits(rows) > SPARSE); }

// Bits of a batch as bits of rows.
INLINE u32 scatter(u32 bits, const Batch* batch) {
    u32 rows = 0;
    UNROLL for (u32 i = 0; i < BATCH; i++) rows |= (bits >> i & 1) << batch->row[i];
    return rows;
}

// Bits of rows as bits of a batch.
INLINE u32 gather(u32 rows, const Batch* batch) {
    u32 bits = 0;
    UNROLL for (u32 i = 0; i < BATCH; i++) bits |= (rows >> batch->row[i] & 1) << i;
    return bits;
}

// Which of the wanted rows of a tile have a value.
INLINE u32 present(const Column* column, u32 tile, u32 lane, u32 want) {
    u64 validity = column->validity + tile * (TILE / 8);
    u32 found = 0;
    // TILE rows are 32 words, of which a lane has one bit each.
    UNROLL for (u32 row = 0; row < 32; row++) {
        u32 word = load_u32(validity + position(row) / 8, want >> row & 1);
        found |= (word >> lane & 1) << row;
    }
    return found;
}

// Which of the wanted rows of a batch, or of the build side, have a value.
INLINE u32 present_at(const Column* column, u32 want, const u32* at) {
    u32 found = 0;
    UNROLL for (u32 i = 0; i < BATCH; i++) {
        u32 word = load_u32(column->validity + at[i] / 32 * sizeof(u32), want >> i & 1);
        found |= (word >> (at[i] % 32) & 1) << i;
    }
    return want & found;
}

// Replaces the wanted keys of a chunk's dictionary by the statement's codes. Gives those that the dictionary has.
INLINE u32 translate(const Place* place, const Column* column, u32 want, i64* values) {
    u32 wrong = 0;
    UNROLL for (u32 i = 0; i < BATCH; i++) {
        u32 is_key = (u64)values[i] < column->keys;
        wrong |= (want & ~(is_key << i)) & (1u << i);
        values[i] = load_u32(column->codes + (is_key ? values[i] : 0) * sizeof(u32), is_key & want >> i);
    }
    if (wrong) set_bits((u32*)place->program->problems, PROBLEM_KEY);
    return want & ~wrong;
}

#define LOAD_BATCH(type, width) \
    UNROLL for (u32 i = 0; i < BATCH; i++) \
        numbers[i] = load_##type(column->values + (u64)batch->at[i] * width, want >> i & 1); \
    break

// True if the values are a base and a number of 32 bits, signed.
INLINE u32 is_narrow(const Column* column, const Page* page) {
    return column->form < FORM_U32 || (column->form == FORM_PACKED && page->bits < 32);
}

INLINE Page page_of(const Column* column, u32 tile) {
    Page none = {0, 0, 0};
    return column->form == FORM_PACKED ? ((const Page*)column->pages)[tile / PAGE_TILES] : none;
}

// The address of this lane's first word of a tile of a packed column.
INLINE u64 packed_words(const Column* column, const Page* page, u32 tile, u32 lane) {
    u64 word = page->first_word + (u64)(tile % PAGE_TILES) * page->bits * LANES + lane;
    return column->values + word * sizeof(u32);
}

// Reads the wanted rows of a narrow column, without the base.
INLINE void read_narrow(const Place* place, const Column* column, const Page* page, u32 want, const Batch* batch,
                        i32* numbers) {
    switch (column->form) {
    case FORM_I8: LOAD_BATCH(s8, 1);
    case FORM_U8: LOAD_BATCH(u8, 1);
    case FORM_I16: LOAD_BATCH(s16, 2);
    case FORM_U16: LOAD_BATCH(u16, 2);
    case FORM_I32: LOAD_BATCH(s32, 4);
    default: {
        u64 words = packed_words(column, page, place->tile, place->lane);
        u32 mask = low_bits(page->bits);
        UNROLL for (u32 i = 0; i < BATCH; i++)
            numbers[i] = (i32)unpack(words, batch->row[i] * page->bits, mask, want >> i & 1);
    }
    }
}

// Reads the wanted rows of any column of the chunk. Gives those that have a value.
INLINE u32 read_chunk(const Place* place, u32 number, u32 want, const Batch* batch, i64* values) {
    const Column* column = place->columns + number;
    Page page = page_of(column, place->tile);
    if (column->validity) want = present_at(column, want, batch->at);
    if (is_narrow(column, &page)) {
        i32 numbers[BATCH];
        read_narrow(place, column, &page, want, batch, numbers);
        UNROLL for (u32 i = 0; i < BATCH; i++) values[i] = (i64)((u64)page.base + (u64)(i64)numbers[i]);
    } else if (column->form == FORM_I64) {
        UNROLL for (u32 i = 0; i < BATCH; i++)
            values[i] = load_s64(column->values + (u64)batch->at[i] * 8, want >> i & 1);
    } else if (column->form == FORM_U32) {
        UNROLL for (u32 i = 0; i < BATCH; i++)
            values[i] = load_u32(column->values + (u64)batch->at[i] * 4, want >> i & 1);
    } else {
        u64 words = packed_words(column, &page, place->tile, place->lane);
        UNROLL for (u32 i = 0; i < BATCH; i++)
            values[i] = (i64)((u64)page.base + load_u32(words + batch->row[i] * (LANES * sizeof(u32)), want >> i & 1));
    }
    return column->codes ? translate(place, column, want, values) : want;
}

// Looks up the keys of the wanted rows. Gives those that match, and if `with_rows`, 1 + their rows of the build side.
// Slots are key - low modulo 2^64: that is below `slots` for the keys of the array, and for no other.
INLINE u32 probe(const Place* place, const Join* join, u32 want, const Batch* batch, u32 with_rows, u32* rows) {
    const Column* column = place->columns + join->key;
    Page page = page_of(column, place->tile);
    u64 table = join->table;
    u32 found = 0;
    i64 to_first = (i64)((u64)page.base - (u64)join->low);
    if (!join->keys && !column->codes && is_narrow(column, &page) && to_first == (i32)to_first) {
        // The usual case: the sum below is far from overflowing.
        if (column->validity) want = present_at(column, want, batch->at);
        i32 numbers[BATCH];
        read_narrow(place, column, &page, want, batch, numbers);
        u32 slots[BATCH];
        UNROLL for (u32 i = 0; i < BATCH; i++) {
            i64 slot = numbers[i] + to_first;
            u32 is_slot = (u64)slot < join->slots;
            slots[i] = (u32)slot;
            u32 member = load_u32(join->members + slots[i] / 32 * sizeof(u32), is_slot & want >> i);
            found |= (member >> (slots[i] % 32) & 1) << i;
        }
        if (with_rows)
            UNROLL for (u32 i = 0; i < BATCH; i++)
                rows[i] = load_u32(table + (u64)slots[i] * sizeof(u32), found >> i & 1);
        return found;
    }
    i64 keys[BATCH];
    want = read_chunk(place, join->key, want, batch, keys);
    if (!join->keys) {
        UNROLL for (u32 i = 0; i < BATCH; i++) {
            u64 slot = (u64)keys[i] - (u64)join->low;
            u32 is_slot = slot < join->slots;
            rows[i] = load_u32(table + (is_slot ? slot : 0) * sizeof(u32), is_slot & want >> i);
            found |= (u32)(rows[i] != 0) << i;
        }
        return found;
    }
    u64 slots[BATCH];
    UNROLL for (u32 i = 0; i < BATCH; i++) slots[i] = (u64)keys[i] * 0x9e3779b97f4a7c15ull >> join->shift;
    // All rows take a step at the same time, until each has met its key or an empty slot: half of the slots are empty.
    for (u32 open = want; ANY(open);) {
        u32 taken[BATCH];
        UNROLL for (u32 i = 0; i < BATCH; i++) taken[i] = load_u32(table + slots[i] * sizeof(u32), open >> i & 1);
        UNROLL for (u32 i = 0; i < BATCH; i++) {
            u32 is_taken = taken[i] != 0;
            i64 key = load_s64(join->keys + (u64)(is_taken ? taken[i] - 1 : 0) * sizeof(i64), is_taken);
            u32 is_found = is_taken & (key == keys[i]);
            if (is_found) rows[i] = taken[i];
            found |= is_found << i;
            slots[i] = (slots[i] + 1) & (join->slots - 1);
            open &= ~((~is_taken & 1) << i | is_found << i);
        }
    }
    return found;
}

// Reads the wanted rows of a column of the chunk or of a join. Gives those that have a value.
INLINE u32 read_source(const Place* place, u32 source, u32 number, u32 want, const Batch* batch, i64* values) {
    if (source == 0) return read_chunk(place, number, want, batch, values);
    const Join* join = join_of(place, source);
    const Column* column = PART(place->program, Column, join->columns) + number;
    u32 rows[BATCH] = {0};
    want = probe(place, join, want, batch, 1, rows);
    UNROLL for (u32 i = 0; i < BATCH; i++) rows[i] -= want >> i & 1;
    if (column->validity) want = present_at(column, want, rows);
    if (column->form == FORM_I32)
        UNROLL for (u32 i = 0; i < BATCH; i++)
            values[i] = load_s32(column->values + (u64)rows[i] * 4, want >> i & 1);
    else
        UNROLL for (u32 i = 0; i < BATCH; i++)
            values[i] = load_s64(column->values + (u64)rows[i] * 8, want >> i & 1);
    return want;
}

#define COMPARE(type, width) \
    UNROLL for (u32 i = 0; i < 16; i++) { \
        u64 from = column->values + (u64)(at + position(i)) * width; \
        yes |= (u32)((u32)load_##type(from, want >> i & 1) - first <= span) << i; \
    } \
    break

// Which of the wanted rows, all of which have values, are in low..=high; for forms of at most 32 bits.
INLINE u32 compare(const Column* column, u32 tile, u32 lane, u32 wanted, i64 low, i64 high) {
    i64 least = 0, greatest = 0;
    Page page = {0, 0, 0};
    u64 words = 0;
    switch (column->form) {
    case FORM_I8: least = -128; greatest = 127; break;
    case FORM_U8: greatest = 255; break;
    case FORM_I16: least = -32768; greatest = 32767; break;
    case FORM_U16: greatest = 65535; break;
    case FORM_I32: least = -2147483647 - 1; greatest = 2147483647; break;
    case FORM_U32: greatest = 4294967295ll; break;
    default: {
        page = page_of(column, tile);
        words = packed_words(column, &page, tile, lane);
        greatest = low_bits(page.bits);
        // From here on the bounds are about the numbers above the base.
        u64 distance = (u64)high - (u64)page.base;
        if (high < page.base) high = -1;
        else high = distance < (u64)greatest ? (i64)distance : greatest;
        distance = (u64)low - (u64)page.base;
        if (low <= page.base) low = 0;
        else low = distance <= (u64)greatest ? (i64)distance : greatest + 1;
    }
    }
    if (low <= least && high >= greatest) return wanted;
    if (low < least) low = least;
    if (high > greatest) high = greatest;
    if (low > high) return 0;
    u32 first = (u32)low, span = (u32)high - (u32)low, all = 0, mask = low_bits(page.bits);
    // 16 rows at a time: so many loads are in flight.
    for (u32 half = 0; half < 2; half++) {
        u32 at = tile * TILE + half * 32 + lane, want = wanted >> (half * 16), yes = 0, bit = half * 16 * page.bits;
        switch (column->form) {
        case FORM_I8: COMPARE(s8, 1);
        case FORM_U8: COMPARE(u8, 1);
        case FORM_I16: COMPARE(s16, 2);
        case FORM_U16: COMPARE(u16, 2);
        case FORM_I32: COMPARE(s32, 4);
        case FORM_U32: COMPARE(u32, 4);
        default:
            UNROLL for (u32 i = 0; i < 16; i++)
                yes |= (u32)(unpack(words, bit + i * page.bits, mask, want >> i & 1) - first <= span) << i;
        }
        all |= yes << (half * 16);
    }
    return all & wanted;
}

// Tests the wanted rows. Gives those for which the step is true, and in `no` those for which it is false.
INLINE u32 test(const Place* place, const Step* step, u32 want, u32* no) {
    u32 yes = 0, known = 0;
    const Column* column = place->columns + step->column;
    u32 is_chunk = step->source == 0;
    if (is_chunk && step->operation == TEST_NULL) {
        *no = column->validity ? present(column, place->tile, place->lane, want) : want;
        return want & ~*no;
    }
    if (is_chunk && step->operation == TEST_RANGE && column->form != FORM_I64 && !column->codes) {
        known = column->validity ? present(column, place->tile, place->lane, want) : want;
        yes = compare(column, place->tile, place->lane, known, step->low, step->high);
        *no = known & ~yes;
        return yes;
    }
    u32 dense = is_dense(want);
    for (u32 start = 0; ANY(want); start += BATCH) {
        Batch batch;
        u32 wanted = take_batch(place, &want, dense, start, &batch), found = 0, have;
        if (step->operation == TEST_MATCH) {
            u32 rows[BATCH];
            have = wanted;
            found = probe(place, join_of(place, step->source), wanted, &batch, 0, rows);
        } else {
            i64 values[BATCH];
            have = read_source(place, step->source, step->column, wanted, &batch, values);
            if (step->operation == TEST_NULL) {
                found = wanted & ~have;
                have = wanted;
            } else if (step->operation == TEST_RANGE) {
                UNROLL for (u32 i = 0; i < BATCH; i++)
                    found |= (u32)(values[i] >= step->low && values[i] <= step->high) << i;
            } else {
                UNROLL for (u32 i = 0; i < BATCH; i++) {
                    u64 bit = (u64)values[i] - (u64)step->low;
                    u32 is_near = values[i] >= step->low && values[i] <= step->high;
                    u32 word = load_u32(step->set + (is_near ? bit / 32 : 0) * sizeof(u32), is_near & have >> i);
                    found |= (word >> (bit % 32) & is_near) << i;
                }
            }
        }
        yes |= scatter(found & have, &batch);
        known |= scatter(have, &batch);
    }
    *no = known & ~yes;
    return yes;
}

// The wanted rows for which all conditions are true.
OUTLINE u32 evaluate(Place at, u32 first, u32 count, u32 want) {
    const Place* place = &at;
    const Step* steps = PART(at.program, Step, at.program->steps) + first;
    u32 yes[DEPTH], no[DEPTH], depth = 0;
    for (u32 i = 0; i < count; i++) {
        const Step* step = steps + i;
        u32 other;
        switch (step->operation) {
        case KEEP:
            want &= yes[--depth];
            if (!ANY(want)) return 0;
            break;
        case BOTH:
            depth--;
            yes[depth - 1] &= yes[depth];
            no[depth - 1] |= no[depth];
            break;
        case EITHER:
            depth--;
            yes[depth - 1] |= yes[depth];
            no[depth - 1] &= no[depth];
            break;
        case NEGATE:
            other = yes[depth - 1];
            yes[depth - 1] = no[depth - 1];
            no[depth - 1] = other;
            break;
        case CONSTANT:
            yes[depth] = step->low == 1 ? want : 0;
            no[depth++] = step->low == 0 ? want : 0;
            break;
        default:
            yes[depth] = test(place, step, want, &other);
            no[depth++] = other;
        }
    }
    return want;
}

INLINE i64 neutral(u32 kind) {
    return kind == LEAST ? 9223372036854775807ll : kind == GREATEST ? -9223372036854775807ll - 1 : 0;
}

// Combines a value with a place of the output or of the block, which others change at the same time.
INLINE void combine_shared(u32 where, u32 kind, i64* at, i64 value) {
    if (kind == LEAST) lower(at, value);
    else if (kind == GREATEST) raise(at, value);
    else if (where == BLOCK_PLACES) add_near(at, value);
    else if (value) add(at, value);
}

// Combines a value with a place of this thread's own. Sums do not overflow: whoever made the program has seen to it.
INLINE void combine(u32 kind, i64* at, i64 value) {
    i64 now = *at;
    *at = kind == LEAST      ? (value < now ? value : now)
          : kind == GREATEST ? (value > now ? value : now)
                             : (i64)((u64)now + (u64)value);
}

// Multiplies the products so far with a measure's factors for the wanted rows. Gives the rows of which none is null.
INLINE u32 multiply(const Place* place, const Measure* measure, u32 want, const Batch* batch, i64* values) {
    const Factor* factors = PART(place->program, Factor, place->program->factors) + measure->first_factor;
    u32 is_first = !measure->continues;
    for (u32 f = 0; f < measure->factors; f++) {
        const Factor* factor = factors + f;
        const Column* column = place->columns + factor->column;
        u64 offset = factor->offset, scale = factor->scale;
        Page page;
        if (factor->narrow && factor->source == 0 && !column->codes &&
            (page = page_of(column, place->tile), is_narrow(column, &page))) {
            // The factor fits in 32 bits, so it is right whatever its parts lose above them.
            i32 numbers[BATCH];
            if (column->validity) want = present_at(column, want, batch->at);
            read_narrow(place, column, &page, want, batch, numbers);
            u32 base = (u32)(offset + scale * (u64)page.base), times = (u32)scale;
            UNROLL for (u32 i = 0; i < BATCH; i++) {
                i64 term = (i32)(base + times * (u32)numbers[i]);
                values[i] = is_first ? term : (i64)((u64)values[i] * (u64)term);
            }
        } else {
            i64 read[BATCH];
            want = read_source(place, factor->source, factor->column, want, batch, read);
            UNROLL for (u32 i = 0; i < BATCH; i++) {
                u64 term = offset + scale * (u64)read[i];
                values[i] = (i64)(is_first ? term : (u64)values[i] * term);
            }
        }
        is_first = 0;
    }
    return want;
}

// The groups of the wanted rows. Gives the rows whose keys are where the program expects them.
INLINE u32 find_groups(const Place* place, u32 want, const Batch* batch, u32* groups) {
    const Program* p = place->program;
    const Key* keys = PART(p, Key, p->keys);
    UNROLL for (u32 i = 0; i < BATCH; i++) groups[i] = 0;
    for (u32 k = 0; k < p->key_count; k++) {
        i64 values[BATCH], base = keys[k].base;
        u32 count = keys[k].count, nullable = keys[k].nullable, stride = keys[k].stride, wrong = 0;
        u32 have = read_source(place, keys[k].source, keys[k].column, want, batch, values);
        UNROLL for (u32 i = 0; i < BATCH; i++) {
            u64 code = (u64)values[i] - (u64)base;
            u32 is_value = have >> i & 1, is_right = is_value ? code < count : nullable;
            groups[i] += is_right ? (is_value ? (u32)code : count) * stride : 0;
            wrong |= (is_right ^ 1) << i;
        }
        if (wrong & want) set_bits((u32*)p->problems, PROBLEM_GROUP);
        want &= ~wrong;
    }
    return want;
}

// Adds values to a slot of their groups, whose places `groups` has. Sums are of all rows of the batch: the value of one
// that does not count is 0, or its group is a place that nobody reads.
INLINE void accumulate(const Program* p, u32 where, i64* own, u32 kind, u32 slot, u32 counted, const u32* groups,
                       const i64* values) {
    if (where == OWN && p->groups == 1 && kind == SUM) {
        u64 sum = 0;
        UNROLL for (u32 i = 0; i < BATCH; i++) sum += (u64)values[i];
        own[slot * WIDTH] = (i64)((u64)own[slot * WIDTH] + sum);
        return;
    }
    if (where == OWN && kind == SUM) {
        UNROLL for (u32 i = 0; i < BATCH; i++) {
            i64* place = own + groups[i] + slot * WIDTH;
            *place = (i64)((u64)*place + (u64)values[i]);
        }
        return;
    }
    UNROLL for (u32 i = 0; i < BATCH; i++) {
        if (!(counted >> i & 1)) continue;
        if (where == OWN) combine(kind, own + groups[i] + slot * WIDTH, values[i]);
        else combine_shared(where, kind, (where == OUTPUT ? (i64*)p->output : own) + groups[i] + slot, values[i]);
    }
}

// Aggregates rows of a tile; `masks` has the rows that count for measures with a condition of their own.
INLINE void aggregate(const Place* place, u32 where, i64* own, u32 want, const u32* masks, const Batch* batch) {
    const Program* p = place->program;
    const Measure* measures = PART(p, Measure, p->measures);
    u32 counted = 0, groups[BATCH];
    want = find_groups(place, want, batch, groups);
    // Where the slots of each group lie.
    u32 stride = where == OWN ? p->slots * WIDTH : p->slots;
    UNROLL for (u32 i = 0; i < BATCH; i++) groups[i] = (want >> i & 1 ? groups[i] : p->groups) * stride;
    i64 values[BATCH];
    for (u32 m = 0; m < p->measure_count; m++) {
        const Measure* measure = measures + m;
        u32 kind = measure->kind, slot = measure->slot;
        if (!measure->continues) {
            counted = measure->steps ? gather(masks[m], batch) & want : want;
            if (!measure->factors)
                UNROLL for (u32 i = 0; i < BATCH; i++) values[i] = 1;
        }
        if (!ANY(counted)) continue;
        counted = multiply(place, measure, counted, batch, values);
        if (p->groups == 1 ? ANY(counted != (1u << BATCH) - 1) : ANY(counted != want))
            UNROLL for (u32 i = 0; i < BATCH; i++) values[i] = counted >> i & 1 ? values[i] : 0;
        if (kind != SUM_WIDE) {
            accumulate(p, where, own, kind, slot, counted, groups, values);
            continue;
        }
        i64 halves[BATCH];
        UNROLL for (u32 i = 0; i < BATCH; i++) halves[i] = (u32)values[i];
        accumulate(p, where, own, SUM, slot, counted, groups, halves);
        UNROLL for (u32 i = 0; i < BATCH; i++) halves[i] = values[i] >> 32;
        accumulate(p, where, own, SUM, slot + 1, counted, groups, halves);
    }
}

// Scans the tiles of this thread. `own` has the thread's or the block's places for each slot of each group; `near` has
// room for the columns of a chunk for each warp.
INLINE void scan_tiles(const Program* p, u32 where, i64* own, u64* near, u32 t, u32 block, u32 blocks) {
    const Measure* measures = PART(p, Measure, p->measures);
    u32 warps = WIDTH / LANES;
    Place place;
    place.program = p;
    place.lane = t % LANES;
    u32 before = 0xffffffffu;
    // A warp has tiles side by side, as they are mostly of one chunk.
    u64 warp = block * warps + t / LANES, all_warps = (u64)blocks * warps;
    u32 end = (u32)((warp + 1) * p->tiles / all_warps);
    for (u32 tile = (u32)(warp * p->tiles / all_warps); tile < end; tile++) {
        u32 number = ((const u32*)p->tile_chunks)[tile];
        const Chunk* chunk = (const Chunk*)p->chunks + number;
        u32 words = p->columns * (sizeof(Column) / sizeof(u64));
        if (number != before)
            place.columns =
                (const Column*)bring_near((const void*)chunk->columns, near + t / LANES * words, words, place.lane);
        before = number;
        place.tile = tile - chunk->first_tile;
        u32 rows = chunk->rows - place.tile * TILE, alive = 0xffffffffu;
        if (rows < TILE) {
            alive = 0;
            UNROLL for (u32 row = 0; row < 32; row++) alive |= (u32)(position(row) + place.lane < rows) << row;
        }
        alive = evaluate(place, 0, p->filter_steps, alive);
        if (!ANY(alive)) continue;
        u32 masks[MEASURES];
        for (u32 m = 0; m < p->measure_count; m++)
            if (measures[m].steps)
                masks[m] = evaluate(place, measures[m].first_step, measures[m].steps, alive);
        u32 dense = is_dense(alive);
        for (u32 start = 0; ANY(alive); start += BATCH) {
            Batch batch;
            u32 want = take_batch(&place, &alive, dense, start, &batch);
            aggregate(&place, where, own, want, masks, &batch);
        }
    }
}

// The kind of the measure that has the slot.
INLINE u32 kind_of_slot(const Program* p, u32 slot) {
    const Measure* measures = PART(p, Measure, p->measures);
    u32 kind = SUM;
    for (u32 m = 0; m < p->measure_count; m++)
        if (measures[m].slot == slot) kind = measures[m].kind;
    return kind;
}

KERNEL(scan, 6, Program) {
    // The program, the columns of a chunk for each warp, places of groups: one group more than there are.
    SHARED(u64, memory, BLOCK_BYTES / sizeof(u64) + OWN_PLACES * WIDTH);
    const Program* near = (const Program*)memory;
    u64* columns = memory + p->bytes / sizeof(u64);
    i64* own = (i64*)columns + p->columns * (sizeof(Column) / sizeof(u64)) * (WIDTH / LANES);
    // Places of this thread are WIDTH apart.
    u32 where = p->where, places = p->groups * p->slots;
    u32 used = where == OWN ? places + p->slots : where == BLOCK_PLACES ? places : 0;
    THREADS {
        for (u32 i = t; i < p->bytes / sizeof(u64); i += WIDTH) memory[i] = ((const u64*)p)[i];
    }
    THREADS {
        if (where == OWN)
            for (u32 place = 0; place < used; place++)
                own[place * WIDTH + t] = neutral(kind_of_slot(near, place % p->slots));
        else
            for (u32 place = t; place < used; place += WIDTH) own[place] = neutral(kind_of_slot(near, place % p->slots));
    }
    THREADS { scan_tiles(near, where, where == OWN ? own + t : own, columns, t, BLOCK, BLOCKS); }
    THREADS {
        for (u32 place = t; where != OUTPUT && place < places; place += WIDTH) {
            u32 kind = kind_of_slot(near, place % p->slots);
            i64 value = neutral(kind);
            if (where == BLOCK_PLACES) value = own[place];
            else
                for (u32 i = 0; i < WIDTH; i++) combine(kind, &value, own[place * WIDTH + (i + t) % WIDTH]);
            combine_shared(OUTPUT, kind, (i64*)p->output + place, value);
        }
    }
}

typedef struct ALIGNED(16) {
    u64 low;
    u64 high;
} Quad;

KERNEL(stream, 8, Stream) {
    THREADS {
        const Quad* from = (const Quad*)p->from;
        u64 step = (u64)BLOCKS * WIDTH, at = (u64)BLOCK * WIDTH + t, sum = 0;
        for (; at + 3 * step < p->quads; at += 4 * step) {
            Quad read[4];
            UNROLL for (u32 i = 0; i < 4; i++) read[i] = from[at + i * step];
            UNROLL for (u32 i = 0; i < 4; i++) sum += read[i].low + read[i].high;
        }
        for (; at < p->quads; at += step) sum += from[at].low + from[at].high;
        if (sum) add((i64*)p->output, (i64)sum);
    }
}

#ifndef __CUDACC_RTC__
#include <stddef.h>
#define AT(type, field) offsetof(type, field)
// Offsets and sizes of the structures in program.h, for the test that compares them with those of Rust.
const u32 terrace_layout[] = {
    AT(Column, values), AT(Column, validity), AT(Column, pages), AT(Column, codes), AT(Column, form), AT(Column, keys),
    sizeof(Column),
    AT(Chunk, columns), AT(Chunk, rows), AT(Chunk, first_tile), sizeof(Chunk),
    AT(Join, table), AT(Join, members), AT(Join, keys), AT(Join, columns), AT(Join, low), AT(Join, slots), AT(Join, shift),
    AT(Join, key), sizeof(Join),
    AT(Step, operation), AT(Step, source), AT(Step, column), AT(Step, unused), AT(Step, low), AT(Step, high),
    AT(Step, set), sizeof(Step),
    AT(Factor, offset), AT(Factor, scale), AT(Factor, source), AT(Factor, column), AT(Factor, narrow), AT(Factor, unused), sizeof(Factor),
    AT(Measure, kind), AT(Measure, slot), AT(Measure, first_step), AT(Measure, steps), AT(Measure, first_factor),
    AT(Measure, factors), AT(Measure, continues), AT(Measure, unused), sizeof(Measure),
    AT(Key, base), AT(Key, count), AT(Key, nullable), AT(Key, stride), AT(Key, source), AT(Key, column),
    AT(Key, unused), sizeof(Key),
    AT(Program, chunks), AT(Program, tile_chunks), AT(Program, output), AT(Program, problems), AT(Program, joins),
    AT(Program, steps), AT(Program, factors), AT(Program, keys), AT(Program, measures), AT(Program, bytes),
    AT(Program, columns), AT(Program, tiles), AT(Program, filter_steps), AT(Program, key_count),
    AT(Program, measure_count), AT(Program, groups), AT(Program, slots), AT(Program, where), AT(Program, unused), sizeof(Program),
    AT(Stream, from), AT(Stream, quads), AT(Stream, output), sizeof(Stream),
};
const u32 terrace_layout_length = sizeof(terrace_layout) / sizeof(u32);
#endif
