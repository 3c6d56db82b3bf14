// What the kernels read: columns, joins and the program of a scan. src/layout.rs declares the same for Rust.
#ifndef TERRACE_PROGRAM_H
#define TERRACE_PROGRAM_H
#include "kernel.h"

// How the values of a column lie.
enum { FORM_I8, FORM_U8, FORM_I16, FORM_U16, FORM_I32, FORM_U32, FORM_I64, FORM_PACKED };

// A column of a chunk, or of the build side of a join.
typedef struct {
    u64 values;    // address of the values; of the words of all pages where packed
    u64 validity;  // address of a bitmap in Arrow's order, bit 1 = the row has a value; 0 = every row has one
    u64 pages;     // packed: address of a Page for each PAGE_TILES tiles
    u64 codes;     // dictionary column: address of the statement's code (u32) for each key of the chunk; else 0
    u32 form;
    u32 keys;      // dictionary column: length of `codes`
} Column;

// 8,192 rows of a packed column: value = base + a number of `bits` bits (0 to 32), in the FastLanes layout for 32 lanes.
typedef struct {
    i64 base;
    u32 bits;
    u32 first_word;  // place of its first word in `values`
} Page;

typedef struct {
    u64 columns;     // address of its Columns
    u32 rows;
    u32 first_tile;  // number of its first tile among those of all chunks
} Chunk;

// The build side of a join with unique keys. A slot holds 0, or 1 + the row that has the slot's key. Most rows of a
// chunk match none: their look-up ends at `members`, which stays in the cache of a multiprocessor.
typedef struct {
    u64 table;    // address of u32 slots
    u64 members;  // address of a bit for each slot that is not empty, where keys are not hashed
    u64 keys;     // address of the i64 keys by row, for linear probing; 0: slot = key - low
    u64 columns;  // place of the Columns that the probe side may read: of 32 or 64 bits, signed
    i64 low;
    u64 slots;    // linear probing: a power of two
    u32 shift;    // linear probing: 64 - log2(slots)
    u32 key;      // column of the chunk that holds the key
} Join;

// Steps of conditions in postfix order. A test pushes a truth value, which is true, false or unknown.
enum {
    TEST_RANGE,    // low <= value <= high
    TEST_SET,      // bit (value - low) of `set` is 1; values outside of low..high are not in the set
    TEST_NULL,     // the value is missing
    TEST_MATCH,    // the join `source` - 1 has the key
    CONSTANT,      // low: 0 false, 1 true, 2 unknown
    BOTH,          // AND of the last two
    EITHER,        // OR of the last two
    NEGATE,        // NOT of the last one
    KEEP,          // pops one; goes on with the rows for which it is true
};

typedef struct {
    u32 operation;
    u32 source;  // 0: column of the chunk; n + 1: column of the build side of join n
    u32 column;
    u32 unused;
    i64 low;
    i64 high;
    u64 set;     // address of u32 words
} Step;

// offset + scale * value
typedef struct {
    i64 offset;
    i64 scale;
    u32 source;
    u32 column;
    u32 narrow;  // 1: it fits in 32 bits, signed, for every value of the column
    u32 unused;
} Factor;

enum { SUM, SUM_WIDE, LEAST, GREATEST };

// An aggregate over a product of factors. A row counts when the measure's own condition is true and no factor is null.
typedef struct {
    u32 kind;
    u32 slot;          // SUM_WIDE uses the next one, too: sums of the lower 32 bits, and of the rest
    u32 first_step;
    u32 steps;         // 0: no condition of its own
    u32 first_factor;
    u32 factors;
    u32 continues;  // 1: the product starts with that of the measure before, whose rows are the same
    u32 unused;
} Measure;

// Part of the number of a group: stride * (value - base), or stride * count for null.
typedef struct {
    i64 base;
    u32 count;
    u32 nullable;  // 1: null is a value
    u32 stride;
    u32 source;
    u32 column;
    u32 unused;
} Key;

// A scan. What every tile needs follows in the same `bytes` bytes, which a block copies to its own memory: data that
// stream by push them out of caches (measured on an H200: reading them there took half of the time). Places are offsets
// from here.
typedef struct {
    u64 chunks;       // address of Chunk
    u64 tile_chunks;  // address of u32: the chunk of each tile
    u64 output;       // address of i64 [groups][slots]
    u64 problems;     // address of u32: bits of what went wrong
    u64 joins;        // place of Join
    u64 steps;        // place of Step
    u64 factors;      // place of Factor
    u64 keys;         // place of Key
    u64 measures;     // place of Measure
    u32 bytes;
    u32 columns;      // columns of a chunk
    u32 tiles;
    u32 filter_steps;
    u32 key_count;
    u32 measure_count;
    u32 groups;
    u32 slots;
    u32 where;        // where a block adds up groups
    u32 unused;
} Program;

// In places of each thread, in places of the block, or in the output itself.
enum { OWN, BLOCK_PLACES, OUTPUT };

#define PROBLEM_GROUP 1  // a value of a key outside of base..base + count, or null where it is not nullable
#define PROBLEM_KEY 2    // a key that the chunk's dictionary does not have

// Adds up memory: how fast the device reads it.
typedef struct {
    u64 from;    // address of `quads` times 16 bytes
    u64 quads;
    u64 output;  // u64: the sum of all words of 8 bytes, modulo 2^64
} Stream;

#endif
