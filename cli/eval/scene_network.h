// The network judge of `pom eval scenes`: read from a file, or trained and written there; how often it reads
// pictures as the other judge does, and how far its features of them are from those of drawings.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cli/eval/eval.h"
#include "pom/eval/scene_reader.h"

namespace pom::cli {

class SceneNetwork {
 public:
  // A file that is there is read; else as the options say.
  SceneNetwork(const EvalOptions& options, const eval::Canvas& canvas, const StopSignals& signals);

  const eval::JudgeConfig& config() const { return reader_.config(); }
  const eval::ReaderRates& rates() const { return rates_; }  // of drawings it never saw

  // Whether each picture is read alike; its features are kept.
  std::vector<bool> compare(const at::Tensor& pictures, std::span<const eval::SceneVerdict> verdicts,
                            std::vector<at::Tensor>& features) const;
  // The Frechet distance to as many other drawings; none where there are too few for one.
  std::optional<double> frechet(const std::vector<at::Tensor>& features) const;

 private:
  eval::SceneReader reader_;
  eval::ReaderRates rates_;
};

}  // namespace pom::cli
