"""For test_cuda_sequence.py, on every rank: layers over split tokens on one GPU that the ranks share."""

import ranks
import split_layers

rank, count, _ = ranks.join()
ranks.tell(rank, split_layers.cuda_results())
