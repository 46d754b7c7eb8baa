// The figures of the judge of scenes: scene_judge_tool SEED COUNT SIDE [FOLDER]. How often it says that
// drawings are right, how often it notices each mistake, how fast it is, and the spread of misfits and
// residues; with a folder, a picture of each drawing on which it errs.
#include "tests/eval/wrong_scenes.h"
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>

#include "pom/eval/scene_judge.h"
#include "pom/eval/scenes_eval.h"
#include "pom/eval/shapes_eval.h"
#include "pom/io/png.h"

namespace pom::eval {
namespace {

struct Run {
  std::uint64_t seed;
  std::int64_t count, side;
  std::filesystem::path folder;
};

void describe(const SceneQuestion& q, const SceneVerdict& v, const SceneAgreement& a) {
  std::printf("  %s: objects %d colours %d pairs %d count %d relations %d ground %d fits %d, residue %.4f\n",
              q.caption.c_str(), a.objects, a.colours, a.pairs, a.count, a.relations, a.ground, a.fits,
              v.residue);
  for (const FoundObject& o : v.objects)
    std::printf("    %s %s at %.2f %.2f, radius %.3f, misfit %.4f, visible %.2f\n",
                data::hue_names()[static_cast<std::size_t>(o.hue)].c_str(),
                data::shape_names()[static_cast<std::size_t>(o.kind)].c_str(), o.x, o.y, o.radius, o.misfit,
                o.visible);
}

void show(std::vector<double> values, const char* name) {
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1,
                           static_cast<std::size_t>(share * static_cast<double>(values.size())))];
  };
  std::printf("%s: median %.5f, 99 %% %.5f, 99.9 %% %.5f, worst %.5f\n", name, at(0.5), at(0.99), at(0.999),
              values.back());
}

void judge_drawings(const Run& run) {
  std::vector<double> misfits, residues;
  double seconds = 0;
  for (const std::string& split : scene_splits()) {
    const auto questions = scene_questions({split}, run.seed, run.count);
    const at::Tensor pictures = draw_scenes(questions, {run.side, run.side});
    const std::clock_t began = std::clock();  // of all threads
    const std::vector<SceneVerdict> verdicts = judge_scenes(pictures);
    seconds += static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    std::map<std::string, int> wrong;
    int right = 0;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      const SceneAgreement a = compare(questions[i].scene, verdicts[i]);
      for (const FoundObject& o : verdicts[i].objects) misfits.push_back(o.misfit);
      residues.push_back(verdicts[i].residue);
      if (a.everything()) {
        ++right;
        continue;
      }
      if (run.folder.empty()) continue;
      describe(questions[i], verdicts[i], a);
      const io::Image image = unstack_pictures(pictures[static_cast<std::int64_t>(i)].unsqueeze(0)).front();
      io::write_png(run.folder / (split + "-" + std::to_string(i) + ".png"), image, {});
    }
    std::printf("%s: right %d of %lld\n", split.c_str(), right, static_cast<long long>(run.count));
  }
  show(misfits, "misfit");
  show(residues, "residue");
  std::printf("%.1f pictures a second of one core\n", static_cast<double>(residues.size()) / seconds);
}

void judge_mistakes(const Run& run) {
  const auto questions = scene_questions({"training"}, run.seed + 1, run.count);
  for (const Mistake& mistake : mistakes()) {
    std::vector<at::Tensor> pictures;
    std::vector<data::Scene> scenes;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      data::Scene wrong = questions[i].scene;
      Chance chance(run.seed * 1000003 + i);
      if (mistake.of_scene && !mistake.of_scene(wrong, chance)) continue;
      pictures.push_back(mistake.of_picture ? mistake.of_picture(wrong, run.side)
                                            : drawn_scene(wrong, run.side));
      scenes.push_back(questions[i].scene);
    }
    std::int64_t noticed = 0;
    for (std::size_t i = 0; i < pictures.size(); ++i)
      noticed += compare(scenes[i], judge_scene(pictures[i])).everything() ? 0 : 1;
    std::printf("%s: noticed %lld of %zu\n", mistake.name, static_cast<long long>(noticed), pictures.size());
  }
}

}  // namespace
}  // namespace pom::eval

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: scene_judge_tool SEED COUNT SIDE [FOLDER]\n");
    return 2;
  }
  const pom::eval::Run run{std::strtoull(argv[1], nullptr, 0), std::atoll(argv[2]), std::atoll(argv[3]),
                           argc > 4 ? argv[4] : ""};
  pom::eval::judge_drawings(run);
  pom::eval::judge_mistakes(run);
  return 0;
}
