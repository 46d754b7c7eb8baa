// Private to CUDA builds: weights in the form that the kernels of pom/kernels/sm90/gemm/gemm.h read, made
// once and kept. The weights themselves stay in the paper's layout.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace pom::ops {

struct PreparedWeight {
  at::Tensor values;  // matrices: (N, K); biases: (N) in fp32; undefined for an undefined tensor
  at::Tensor scale;   // (N) fp32, of matrices in e4m3
};

enum class Form {
  rows,  // a matrix, its rows reordered
  e4m3,  // a matrix in e4m3 by rows, reordered where there is an order
  bias,  // a bias in fp32, reordered where there is an order
};

// How a tensor is wanted. An order above 0 puts the factors of a feature side by side, as gemm_sums has
// them.
struct Layout {
  Form form = Form::rows;
  std::int64_t order = 0;
};

// Copies by tensor and layout, for any number of threads. The shared one serves whoever calls an operator: it
// follows updates in place by the tensors' version counters (a write through .data or a raw pointer counts
// none: such a writer has to call bump_version), does not hold on to weights, and keeps a bounded number of
// copies for each stream. While a graph is captured it keeps nothing: the graph makes its copies each time
// it runs.
//
// A frozen one belongs to a network whose weights never change: copies stay until it goes and may be part of
// a graph.
class PreparedWeights {
 public:
  enum class Kind { shared, frozen };
  explicit PreparedWeights(Kind kind) : kind_(kind) {}
  PreparedWeights(const PreparedWeights&) = delete;
  PreparedWeights& operator=(const PreparedWeights&) = delete;

  PreparedWeight get(const at::Tensor& tensor, const Layout& layout);
  bool frozen() const { return kind_ == Kind::frozen; }

  static PreparedWeights& current();  // of this thread: that of the nearest Use, else the shared one

  class Use {
   public:
    explicit Use(PreparedWeights& weights);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    PreparedWeights* before_;
  };

 private:
  using Key = std::tuple<const void*, Form, std::int64_t, std::int64_t>;  // tensor, layout, stream
  struct Entry {
    Key key;
    // While it is held, no other tensor has the address.
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> source;
    std::uint32_t version;
    const void* data;
    at::ScalarType dtype;
    PreparedWeight prepared;
  };
  using Entries = std::list<Entry>;  // the last used one first

  // Nothing where there is none; `stale` is then what there was of an earlier version.
  PreparedWeight* find(const Key& key, const at::Tensor& tensor, PreparedWeight& stale);
  void keep(const Key& key, const at::Tensor& tensor, const PreparedWeight& prepared);
  void forget_the_dead();
  void erase(Entries::iterator entry);

  const Kind kind_;
  std::mutex mutex_;
  Entries entries_;
  std::map<Key, Entries::iterator> by_key_;
};

}  // namespace pom::ops
