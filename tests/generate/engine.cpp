// Tests of the engine: one seed, one image, whatever runs beside it; what observers see; what is refused.
#include "pom/generate/engine.h"

#include "tests/generate/tiny_model.h"
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <set>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"
#include "pom/diffusion/noise.h"
#include "pom/io/picture.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

const fs::path& model() {
  static const TinyModel tiny;
  return tiny.folder();
}

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no pom::Error was thrown";
  return "";
}

void expect_parts(const std::string& message, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
}

struct ThreadCount {
  explicit ThreadCount(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~ThreadCount() { at::set_num_threads(before); }
  int before;
};

Request request_of(std::string classes, std::int64_t seed, std::int64_t count) {
  Request request;
  request.class_name = std::move(classes);
  request.seed = {seed};
  request.count = count;
  return request;
}

// An image with what made it.
struct Made {
  io::Image image;
  Request request;
};
std::vector<Made> made_by(Engine& engine, const Request& request, const Limits& limits = {}) {
  const Job job = engine.resolve(request);
  std::vector<Made> made;
  for (io::Image& image : engine.images(job, limits))
    made.push_back({std::move(image), job.items.at(made.size())});
  return made;
}
std::vector<Made> made_by(Engine&& engine, const Request& request) {
  return made_by(engine, request);
}

TEST(Engine, PicturesDifferBySeedAndClass) {
  Engine engine(model());
  const std::vector<Made> pictures = made_by(engine, request_of("circle,star", 7, 2));
  ASSERT_EQ(pictures.size(), 4u);
  std::set<std::string> different;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const Made& picture = pictures[i];
    EXPECT_EQ(picture.image.width, 16);
    EXPECT_EQ(picture.image.height, 16);
    EXPECT_EQ(picture.image.channels, 3);
    EXPECT_EQ(picture.request.own_seed(), 7 + static_cast<std::int64_t>(i));
    EXPECT_EQ(picture.request.class_name, i < 2 ? "circle" : "star");
    EXPECT_EQ(picture.request.count, 1);
    different.emplace(picture.image.data.begin(), picture.image.data.end());
    const std::set<std::uint8_t> levels(picture.image.data.begin(), picture.image.data.end());
    EXPECT_GT(levels.size(), 20u) << "a picture of nothing proves nothing";
  }
  EXPECT_EQ(different.size(), 4u);
  // The class alone makes a difference too.
  EXPECT_NE(made_by(engine, request_of("circle", 7, 1))[0].image,
            made_by(engine, request_of("star", 7, 1))[0].image);
}

// One seed, one picture: for counts, batch limits, threads, samplers with noise of their own, and dtypes.
TEST(Engine, BitsDoNotDependOnBatchOrThreads) {
  for (const char* sampler : {"heun", "ddpm"})
    for (const char* dtype : {"fp32", "bf16"}) {
      Request alone = request_of("circle", 5, 1);
      alone.sampler = sampler;
      alone.dtype = dtype;
      std::vector<io::Image> expected;
      {
        const ThreadCount one(1);
        Engine engine(model());
        for (int i = 0; i < 8; ++i, ++alone.seed[0]) {
          alone.class_name = i % 2 == 0 ? "star" : "circle";
          expected.push_back(made_by(engine, alone, {.batch = 1})[0].image);
        }
      }
      for (const int threads : {1, 2})
        for (const std::int64_t batch : {0, 1, 2, 3})
          for (const std::int64_t count : {1, 3, 8}) {
            const ThreadCount several(threads);
            Engine engine(model());
            Request together = alone;
            together.seed = {5};
            together.class_name = "";
            for (int i = 0; i < count; ++i)
              *together.class_name += i == 0 ? "star" : i % 2 == 0 ? ",star" : ",circle";
            const std::vector<Made> pictures = made_by(engine, together, {.batch = batch});
            ASSERT_EQ(std::ssize(pictures), count);
            for (std::size_t i = 0; i < pictures.size(); ++i)
              EXPECT_EQ(pictures[i].image, expected[i])
                  << sampler << " " << dtype << " threads " << threads << " batch " << batch << " count "
                  << count << " picture " << i;
          }
    }
}

TEST(Engine, ResolvedRequestMakesThePictureAgain) {
  Engine engine(model());
  Request request = request_of("otter, sea", -1, 1);
  request.omega = "0.7";
  request.sampler = "DPM++ 2M";
  request.width = 12;
  request.height = 20;
  const Made picture = made_by(engine, request)[0];
  EXPECT_GE(picture.request.own_seed(), 0);
  EXPECT_EQ(picture.request.sampler, "dpm++2m");
  EXPECT_EQ(picture.image.height, 20);
  EXPECT_EQ(made_by(Engine(model()), picture.request)[0].image, picture.image);
}

TEST(Engine, GuidanceAndItsIntervalMatter) {
  Engine engine(model());
  const auto made = [&](double scale, double from, double to) {
    Request request = request_of("star", 3, 1);
    request.cfg_scale = scale;
    request.cfg_from = from;
    request.cfg_to = to;
    return made_by(engine, request)[0].image;
  };
  EXPECT_NE(made(1, 0, 1), made(3, 0, 1));
  EXPECT_NE(made(3, 0, 1), made(3, 0.4, 0.6));
  EXPECT_EQ(made(3, 0.501, 0.502), made(1, 0, 1));  // no evaluation lies in there
  Request none = request_of("none", 3, 1);
  none.cfg_scale = 5;  // away from no class, towards no class
  Request plain = none;
  plain.cfg_scale = 1;
  const io::Image a = made_by(engine, none)[0].image, b = made_by(engine, plain)[0].image;
  for (std::size_t i = 0; i < a.data.size(); ++i) EXPECT_NEAR(a.data[i], b.data[i], 1);
}

TEST(Engine, ObserverSeesEveryEvaluationPictureAndPreview) {
  Engine engine(model());
  std::vector<std::int64_t> done, order, steps;
  std::int64_t all = 0;
  std::vector<Frames> last_preview;
  Observer observer;
  observer.on_evaluation = [&](std::int64_t now, std::int64_t total) {
    done.push_back(now);
    all = total;
  };
  observer.on_frames = [&](Frames&& frames) {
    EXPECT_TRUE(frames.last && frames.first == 0 && frames.images.size() == 1);
    order.push_back(frames.item);
  };
  observer.preview_every = 2;
  observer.on_preview = [&](std::int64_t step, std::vector<Frames>&& frames) {
    steps.push_back(step);
    last_preview = std::move(frames);
  };
  engine.run(engine.resolve(request_of("circle", 0, 3)), {.batch = 2}, observer);
  EXPECT_EQ(all, 14);  // two batches of 2 · 4 - 1 evaluations
  ASSERT_EQ(done.size(), 14u);
  for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i], static_cast<std::int64_t>(i) + 1);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 2, 4}));
  ASSERT_FALSE(last_preview.empty());
  EXPECT_EQ(last_preview.back().item, 2);
  EXPECT_EQ(last_preview.back().images.at(0).width, 16);
}

TEST(Engine, StopsAtTheNextStep) {
  Engine engine(model());
  std::atomic<bool> stop = false;
  std::int64_t evaluations = 0, pictures = 0;
  Observer observer;
  observer.stop = &stop;
  observer.on_frames = [&](Frames&&) { ++pictures; };
  observer.on_evaluation = [&](std::int64_t done, std::int64_t) {
    evaluations = done;
    if (done == 3) stop = true;
  };
  EXPECT_THROW(engine.run(engine.resolve(request_of("all", 0, 1)), {}, observer), Stopped);
  EXPECT_EQ(evaluations, 3);
  EXPECT_EQ(pictures, 0);
}

// The others are what they would have been, and of who leaves nothing is given.
TEST(Engine, SomeOfABatchLeave) {
  Engine engine(model());
  for (const char* sampler : {"heun", "ddpm", "dpm++2m"}) {
    Request request = request_of("star", 5, 4);
    request.sampler = sampler;
    request.steps = 6;
    const std::vector<Made> whole = made_by(engine, request, {.batch = 4});
    std::int64_t evaluations = 0;
    std::vector<std::int64_t> given;
    Observer observer;
    observer.on_evaluation = [&](std::int64_t done, std::int64_t) { evaluations = done; };
    observer.left = [&](std::int64_t item) {
      return (item == 1 && evaluations >= 2) || (item == 3 && evaluations >= 4);
    };
    observer.preview_every = 1;
    observer.on_preview = [&](std::int64_t, std::vector<Frames>&& frames) {
      EXPECT_EQ(frames.size(), evaluations >= 4 ? 2u : evaluations >= 2 ? 3u : 4u);
    };
    observer.on_frames = [&](Frames&& frames) {
      given.push_back(frames.item);
      EXPECT_EQ(frames.images.at(0), whole.at(static_cast<std::size_t>(frames.item)).image) << sampler;
    };
    engine.run(engine.resolve(request), {.batch = 4}, observer);
    EXPECT_EQ(given, (std::vector<std::int64_t>{0, 2})) << sampler;
  }
}

TEST(Engine, KnowsItsNameAndHash) {
  const Engine engine(model() / "");
  EXPECT_EQ(engine.name(), "tiny");
  EXPECT_EQ(engine.weights_hash().size(), 64u);
  ModelConfig config = TinyModel::tiny_config();
  config.name = "other";
  const TinyModel named(config);
  EXPECT_EQ(Engine(named.folder()).name(), "other");
}

TEST(Engine, GreyPictures) {
  ModelConfig config = TinyModel::tiny_config();
  config.network.channels = 1;
  config.codec.scale = 2;
  config.codec.shift = 0.5;
  const TinyModel grey(config);
  const Made picture = made_by(Engine(grey.folder()), request_of("1", 0, 1))[0];
  EXPECT_EQ(picture.image.channels, 1);
  EXPECT_EQ(picture.image.data.size(), 256u);
}

TEST(Engine, RefusesBadRequests) {
  const Engine engine(model());
  const auto refusal = [&](auto change) {
    Request request = request_of("star", 0, 1);
    change(request);
    return error_of([&] { engine.resolve(request); });
  };
  expect_parts(refusal([](Request& r) { r.class_name = "stra"; }),
               {"class", "\"stra\"", "did you mean \"star\"?"});
  expect_parts(refusal([](Request& r) { r.class_name = "4"; }), {"class", "0 to 3", "got 4"});
  expect_parts(refusal([](Request& r) { r.steps = 0; }), {"steps: expected 1 to 10000, got 0"});
  expect_parts(refusal([](Request& r) { r.steps = 10001; }), {"steps: expected 1 to 10000, got 10001"});
  expect_parts(refusal([](Request& r) { r.sampler = "heum"; }), {"sampler", "\"heum\"", "heun"});
  expect_parts(refusal([](Request& r) { r.width = 33; }),
               {"size", "divisible by 2", "33x16", "32x16 or 34x16"});
  expect_parts(refusal([](Request& r) { r.width = r.height = 1; }), {"size", "1x1; try 2x2"});
  expect_parts(refusal([](Request& r) { r.width = r.height = 65536; }), {"size"});
  expect_parts(refusal([](Request& r) { r.cfg_scale = 2, r.omega = "1"; }),
               {"either cfg_scale or omega, got both"});
  expect_parts(refusal([](Request& r) { r.omega = "much"; }), {"omega", "or auto, got \"much\""});
  expect_parts(refusal([](Request& r) { r.cfg_scale = std::numeric_limits<double>::quiet_NaN(); }),
               {"cfg_scale"});
  expect_parts(refusal([](Request& r) { r.cfg_from = 0.8, r.cfg_to = 0.2; }), {"cfg_from", "0.2", "0.8"});
  expect_parts(refusal([](Request& r) { r.eta = 0.5; }), {"eta", "heun"});
  expect_parts(refusal([](Request& r) { r.count = 0; }), {"count: expected 1 to 1000000, got 0"});
  expect_parts(refusal([](Request& r) { r.count = 1000000, r.class_name = "all"; }),
               {"count", "at most 1000000"});
  expect_parts(refusal([](Request& r) { r.dtype = "fp4"; }), {"dtype", "\"fp4\""});
  expect_parts(refusal([](Request& r) { r.dtype = "fp8"; }), {"sample: dtype: fp8 needs a GPU", "9.0"});
  expect_parts(refusal([](Request& r) { r.seed = {std::numeric_limits<std::int64_t>::max()}; }),
               {"seed", "2^63"});
}

TEST(Engine, ResolvesWhatWasLeftOpen) {
  const Engine engine(model());
  Request request = request_of("circle,none", 7, 2);
  request.omega = "auto";
  request.width = 32;
  request.height = 32;
  const std::vector<Request> resolved = engine.resolve(request).items;
  ASSERT_EQ(resolved.size(), 4u);
  EXPECT_EQ(resolved[3].class_name, "none");
  EXPECT_EQ(resolved[3].own_seed(), 10);
  EXPECT_EQ(resolved[0].cfg_scale, 9);  // 1 + 4 · 32 / 16
  EXPECT_FALSE(resolved[0].omega);
  EXPECT_EQ(resolved[0].steps, 4);
  EXPECT_EQ(resolved[0].sampler, "heun");
  EXPECT_EQ(resolved[0].dtype, "fp32");
  EXPECT_EQ(resolved[0].eta, 0);
  EXPECT_EQ(resolved[0].clamp, 0);
  EXPECT_EQ(resolved[0].cfg_from, 0);
  EXPECT_EQ(resolved[0].cfg_to, 1);
}

TEST(Engine, ShiftGrowsWithTheSize) {
  ModelConfig config = TinyModel::tiny_config();
  config.sample.shift = 3, config.sample.shift_base = 16;
  const TinyModel tiny(config);
  const Engine engine(tiny.folder());
  Request request = request_of("star", 0, 1);
  EXPECT_EQ(engine.resolve(request).first().shift, 3);
  request.width = request.height = 64;
  EXPECT_EQ(engine.resolve(request).first().shift, 6);  // 3 · √(64 / 16)
  request.shift = 1.5;
  EXPECT_EQ(engine.resolve(request).first().shift, 1.5);
}

TEST(Engine, SeedsAsAList) {
  Engine engine(model());
  Request request = request_of("circle,star", 0, 1);
  request.seed = {9, 2, 9};
  const std::vector<Made> listed = made_by(engine, request);
  ASSERT_EQ(listed.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_EQ(listed[i].image,
              made_by(engine, request_of(i < 3 ? "circle" : "star", request.seed[i % 3], 1))[0].image);
  request.count = 2;
  expect_parts(error_of([&] { engine.resolve(request); }), {"count", "list of seeds"});
  request.count = 1, request.seed = {3, -1};
  expect_parts(error_of([&] { engine.resolve(request); }), {"seed", "at least 0", "-1"});
}

TEST(Engine, AwayFromAClass) {
  Engine engine(model());
  const auto made = [&](std::optional<std::string> away, double scale) {
    Request request = request_of("star", 3, 1);
    request.negative_class = std::move(away), request.cfg_scale = scale;
    return made_by(engine, request)[0].image;
  };
  EXPECT_EQ(made("none", 3), made({}, 3));
  EXPECT_NE(made("circle", 3), made({}, 3));
  EXPECT_EQ(made("circle", 1), made({}, 1));  // nothing is led away from
  Request several = request_of("star", 3, 1);
  several.negative_class = "all";
  expect_parts(error_of([&] { engine.resolve(several); }), {"negative_class: expected one class"});
}

// What begins with an image: strength 0 gives it back, 1 is as if there were none.
TEST(Engine, BeginsWithAnImage) {
  Engine engine(model());
  const io::Image from = made_by(engine, request_of("circle", 1, 1))[0].image;
  const fs::path file = fs::temp_directory_path() / "pom-engine-init.png";
  io::write_picture(file, from);
  const auto made = [&](double strength) {
    Request request = request_of("star", 3, 1);
    request.init = file.string(), request.strength = strength;
    return made_by(engine, request)[0];
  };
  EXPECT_EQ(made(0).image, from);
  EXPECT_EQ(made(1).image, made_by(engine, request_of("star", 3, 1))[0].image);
  const Made half = made(0.5);
  EXPECT_NE(half.image, from);
  EXPECT_NE(half.image, made(1).image);
  EXPECT_EQ(made_by(engine, half.request)[0].image, half.image);
  Request wrong = request_of("star", 3, 1);
  wrong.strength = 0.5;
  expect_parts(error_of([&] { engine.resolve(wrong); }), {"strength: expected an init"});
  wrong.init = file.string(), wrong.width = 32;
  expect_parts(error_of([&] { engine.resolve(wrong); }),
               {"init: expected the size asked for, 32x16, got 16x16"});
  fs::remove(file);
}

TEST(Engine, NoiseInAndLatentsOut) {
  Engine engine(model());
  const Job job = engine.resolve(request_of("star,circle", 3, 1));
  std::vector<at::Tensor> latents;
  std::vector<io::Image> images;
  Observer observer;
  observer.on_latents = [&](std::int64_t, const at::Tensor& made) { latents.push_back(made.clone()); };
  observer.on_frames = [&](Frames&& frames) { images.push_back(std::move(frames.images[0])); };
  at::Tensor noise = at::empty({2, 3, 16, 16});
  diffusion::fill_latents(noise, std::vector<std::uint64_t>{3, 4});
  engine.run(job, {.batch = 1}, observer, {.noise = noise});
  EXPECT_EQ(images, engine.images(job));
  ASSERT_EQ(latents.size(), 2u);
  EXPECT_EQ(latents[1].sizes(), at::IntArrayRef({1, 3, 16, 16}));
  expect_parts(error_of([&] { engine.run(job, {}, {}, {.noise = noise.narrow(0, 0, 1)}); }),
               {"noise: expected floating point of shape [2, 3, 16, 16]", "[1, 3, 16, 16]"});
}

TEST(Engine, FieldsThatNeedAnotherModel) {
  const Engine engine(model());
  Request request = request_of("star", 0, 1);
  request.prompt = {"a star"};
  expect_parts(error_of([&] { engine.resolve(request); }), {"prompt: expected a model that reads text"});
  request.prompt.clear(), request.frames = "8";
  expect_parts(error_of([&] { engine.resolve(request); }), {"frames: expected a model that makes clips"});
}

TEST(Engine, SaysWhichPictureIsNotFinite) {
  const TinyModel broken;
  models::Weights weights = TinyModel::random_weights(broken.config().network);
  weights["classes_emb.weight"][2].fill_(std::numeric_limits<float>::quiet_NaN());
  models::write_weights(broken.folder() / weights_file, weights, at::kFloat);
  Engine engine(broken.folder());
  std::int64_t pictures = 0;
  Observer observer;
  observer.on_frames = [&](Frames&&) { ++pictures; };
  expect_parts(
      error_of([&] { engine.run(engine.resolve(request_of("circle,square,star", 9, 1)), {}, observer); }),
      {"class star", "seed 11", "NaN"});
  EXPECT_EQ(pictures, 0);
}

TEST(Engine, RefusesWhatDoesNotFit) {
  Engine engine(model());
  expect_parts(error_of([&] { made_by(engine, request_of("all", 0, 1), {.memory_bytes = 1000}); }),
               {"memory", "MiB"});
  expect_parts(error_of([&] { made_by(engine, request_of("all", 0, 1), {.batch = -1}); }), {"batch", "-1"});
  Request large = request_of("star", 0, 1);
  large.width = large.height = 8192;
  const Forecast small = engine.forecast(engine.resolve(request_of("star", 0, 1)));
  const Forecast forecast =
      engine.forecast(engine.resolve(large), {.memory_bytes = small.peak_bytes + (std::int64_t{1} << 28)});
  EXPECT_FALSE(forecast.fits);
  expect_parts(forecast.advice, {"--size ", " would fit"});
}

TEST(Engine, ForecastCounts) {
  Engine engine(model());
  const Forecast forecast = engine.forecast(engine.resolve(request_of("all", -1, 2)), {.batch = 3});
  EXPECT_EQ(forecast.items, 8);
  EXPECT_EQ(forecast.batch, 3);
  EXPECT_EQ(forecast.evaluations, 3 * 7);
  EXPECT_GT(forecast.macs, 0);
  EXPECT_GT(forecast.seconds, 0);
  EXPECT_TRUE(forecast.fits) << forecast.advice;
  EXPECT_GT(forecast.peak_bytes, 1 << 20);
  EXPECT_GT(forecast.free_bytes, forecast.peak_bytes);
}

TEST(Engine, OpensOnlyWholeFolders) {
  const auto refusal = [](const fs::path& folder) { return error_of([&] { Engine engine(folder); }); };
  expect_parts(refusal("/nowhere/at/all"), {"model folder: /nowhere/at/all: no such folder"});
  const TinyModel tiny;
  expect_parts(refusal(tiny.folder() / weights_file), {"expected a folder", "got a file"});
  const fs::path weights = tiny.folder() / weights_file;
  fs::resize_file(weights, fs::file_size(weights) - 8);
  expect_parts(refusal(tiny.folder()), {"model.safetensors"});
  // Nothing of a size that no tensor can have: the name is what is wrong with it, and is told.
  const std::string header =
      R"({"odd":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})";
  std::ofstream(weights, std::ios::binary)
      << static_cast<char>(header.size()) << std::string(7, '\0') << header;
  expect_parts(refusal(tiny.folder()), {"model.safetensors", "\"odd\""});
  fs::remove(weights);
  expect_parts(refusal(tiny.folder()), {"no model.safetensors"});
  fs::remove(tiny.folder() / config_file);
  expect_parts(refusal(tiny.folder()), {": no config.json"});
}

TEST(Engine, AccountsForEveryTensorWhenItOpens) {
  const TinyModel tiny;
  models::Weights weights = TinyModel::random_weights(tiny.config().network);
  weights.erase("out_proj.bias");
  models::write_weights(tiny.folder() / weights_file, weights, at::kFloat);
  expect_parts(error_of([&] { Engine engine(tiny.folder()); }), {"out_proj.bias", "missing"});
}

}  // namespace
}  // namespace pom::generate
