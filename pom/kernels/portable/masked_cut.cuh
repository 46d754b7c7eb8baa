// Private to the masked mixer: where a run or a piece of a Cut is, found on the device.
#pragma once

#include "pom/kernels/portable/masked_mixer.h"

namespace pom::kernels {

// The table of sequences that are not equal: first row, run and piece of each sequence and past the last;
// then the sequence of each run, and of each piece.
struct Sequence {
  int64_t index, first_row, length, first_run, first_piece;
};

// All of these numbers are below 2^31, and divisions of 64 bits are slow on a GPU.
__host__ __device__ inline int64_t quotient(int64_t a, int64_t b) {
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}
__host__ __device__ inline int64_t parts(int64_t length, int64_t each) {
  return quotient(length + each - 1, each);
}
__host__ __device__ inline int64_t pieces_of(int64_t length, int64_t run, int64_t piece) {
  const int64_t whole = quotient(length, run);
  return whole * parts(run, piece) + parts(length - whole * run, piece);
}
__host__ __device__ inline int64_t runs_of(int64_t length, int64_t run) {
  return length > run ? parts(length, run) : 1;
}

__device__ inline Sequence sequence_at(const Cut& c, int64_t s) {
  if (!c.table)
    return {s, s * c.length, c.length, s * runs_of(c.length, c.run), s * pieces_of(c.length, c.run, c.piece)};
  const int32_t* rows = c.table;
  const int32_t* runs = rows + c.sequences + 1;
  const int32_t* pieces = runs + c.sequences + 1;
  return {s, rows[s], rows[s + 1] - rows[s], runs[s], pieces[s]};
}

struct Piece {
  int64_t index, sequence, run;     // of all pieces; of all sequences; of all runs
  int64_t run_number, number;       // of the sequence's runs; of the run's pieces
  int64_t first_row, token, count;  // the first of its rows, and counted from the start of its sequence
  int64_t length;                   // of its sequence
  int64_t last_of_sequence;         // piece
};
__device__ inline Piece piece_at(const Cut& c, int64_t index) {
  const int64_t s = c.table ? c.table[3 * (c.sequences + 1) + c.runs + index]
                            : quotient(index, pieces_of(c.length, c.run, c.piece));
  const Sequence q = sequence_at(c, s);
  const int64_t each = parts(c.run, c.piece), place = index - q.first_piece;
  const int64_t number = quotient(place, each), within = place - number * each;
  const int64_t token = number * c.run + within * c.piece;
  const int64_t end = min(min(token + c.piece, (number + 1) * c.run), q.length);
  return {index,
          s,
          q.first_run + number,
          number,
          within,
          q.first_row + token,
          token,
          end - token,
          q.length,
          q.first_piece + pieces_of(q.length, c.run, c.piece) - 1};
}

// The pieces of a run, and where in its sequence the run is.
struct Run {
  int64_t first_piece, count, next_count;  // that of the run behind it, 0 where it is its sequence's last
  bool first;                              // of its sequence
};
__device__ inline Run run_at(const Cut& c, int64_t index) {
  const int64_t s =
      c.table ? c.table[3 * (c.sequences + 1) + index] : quotient(index, runs_of(c.length, c.run));
  const Sequence q = sequence_at(c, s);
  const int64_t number = index - q.first_run;
  const int64_t left = q.length - number * c.run, behind = max(left - c.run, static_cast<int64_t>(0));
  return {q.first_piece + number * parts(c.run, c.piece), parts(min(c.run, left), c.piece),
          parts(min(c.run, behind), c.piece), number == 0};
}

}  // namespace pom::kernels
