// What the workers do for the queue: run a batch, and make files of what comes of it.
#include "pom/base/error.h"
#include "pom/io/picture.h"
#include "pom/serve/clip_file.h"
#include "pom/serve/queue.h"

namespace pom::serve {

// On the worker's thread: of the queue it uses what does not change.
void Queue::run(std::shared_ptr<Batch> batch, Device device) {
  const auto tell = [this, alive = alive_](std::function<void()> call) {
    post_([alive, call = std::move(call)] {
      if (*alive) call();
    });
  };
  std::vector<std::vector<io::Image>> frames(batch->pieces.size());
  double shown = 0, told = 0;
  generate::Observer observer;
  observer.stop = &batch->stop;
  const auto pieces = std::ssize(batch->pieces);  // what comes after them fills the batch up
  observer.left = [&](std::int64_t item) {
    return item < pieces && batch->left[static_cast<std::size_t>(item)].load();
  };
  observer.on_evaluation = [&](std::int64_t done, std::int64_t total) {
    batch->done = done;
    if (const double now = steady_seconds(); now - told > 0.05 || done == total) {
      told = now;
      tell([this, batch, done, total] { heard(batch, done, total); });
    }
    device.worker->let_urgent_pass();
  };
  observer.on_frames = [&](generate::Frames&& made) {
    if (made.item >= pieces) return;
    const auto item = static_cast<std::size_t>(made.item);
    for (io::Image& image : made.images) frames[item].push_back(std::move(image));
    if (made.last) store(batch, item, std::move(frames[item]));
  };
  observer.preview_every = batch->preview_every;
  observer.on_preview = [&](std::int64_t step, std::vector<generate::Frames>&& all) {
    const double now = steady_seconds();
    if (now - shown < 0.25) return;  // four a second
    shown = now;
    for (generate::Frames& some : all)
      if (some.item < pieces && batch->pieces[static_cast<std::size_t>(some.item)].job->previews)
        pool_.add([this, tell, batch, step, item = static_cast<std::size_t>(some.item),
                   image = std::move(some.images.front())] {
          const net::Bytes png = shared_bytes(io::encode_png(image));
          tell([this, batch, step, item, png] {
            const Piece& piece = batch->pieces[item];
            if (listener_.on_preview && piece.job->previews && !piece.job->over())
              listener_.on_preview(*piece.job, static_cast<std::int64_t>(piece.item), step, png);
          });
        });
  };
  try {
    device.backend->run(batch->model, batch->job, std::ssize(batch->job.items), observer);
  } catch (const generate::Stopped&) {
  } catch (const Error& error) {
    const std::string text = error.what();
    ApiError failure(500, "internal", text);
    if (text.starts_with("sample: memory")) failure.status = 503, failure.code = "out_of_memory";
    failure.retry = false;
    tell([this, batch, failure] { failed(batch, failure); });
  } catch (const std::exception& error) {
    const bool memory = std::string_view(error.what()).find("out of memory") != std::string_view::npos;
    ApiError failure(memory ? 503 : 500, memory ? "out_of_memory" : "internal",
                     memory ? "the device has not enough memory for this" : "the work failed");
    failure.retry = false;
    tell([this, batch, failure] { failed(batch, failure); });
  }
  // After what the pool still has of it, which is in order: pieces that are made are told of by then or
  // later.
  tell([this, batch] { ended(batch); });
}

// On the worker's thread: the rest on the pool's.
void Queue::store(const std::shared_ptr<Batch>& batch, std::size_t index, std::vector<io::Image> frames) {
  pool_.add([this, alive = alive_, batch, index, frames = std::move(frames)] {
    const Piece piece = batch->pieces[index];
    const generate::Request& item = piece.job->items[piece.item].request;
    const Backend& backend = *devices_[batch->device].device.backend;
    auto picture = std::make_shared<Picture>();
    std::optional<ApiError> failure;
    try {
      const std::vector<io::TextEntry> text = backend.text_of(batch->model, item, batch->size);
      if (batch->job.clip) {
        ClipFile file = clip_file(frames, batch->job.fps, text);
        picture->bytes = std::make_shared<const std::string>(std::move(file.bytes));
        picture->extension = file.extension;
      } else {
        picture->bytes = shared_bytes(io::encode_png(frames.front(), text));
        picture->extension = "png";
      }
      picture->id = random_id(), picture->created = now_seconds(), picture->made = steady_seconds(),
      picture->size = picture->bytes->size();
      picture->model = backend.models().at(batch->model).id, picture->client = piece.job->client;
      picture->request = item, picture->frames = std::ssize(frames);
    } catch (const std::exception& error) {
      failure.emplace(500, "internal", "the file could not be made");
    }
    if (!failure && piece.job->keep) {
      try {
        pictures_.write_file(*picture);
      } catch (const Error&) {  // a full disk: the answer still comes, from memory
      }
    }
    std::optional<io::Image> image;
    if (piece.job->reproduces) image = frames.front();
    post_([this, alive, batch, piece, picture, image = std::move(image), failure] {
      if (!*alive) return;
      if (!failure) return made(piece, picture, image);
      if (piece.job->over()) return;  // the others of its batch are well
      piece.job->error = *failure;
      finish(*piece.job, JobState::failed);
    });
  });
}

}  // namespace pom::serve
