#include "pom/net/exchange.h"

#include <algorithm>
#include <utility>

namespace pom::net {
namespace {

class LineStream final : public BodyStream {
 public:
  explicit LineStream(std::shared_ptr<Line> line) : line_(std::move(line)) {}
  ~LineStream() override { line_->finish(false); }
  LineStream(const LineStream&) = delete;
  LineStream& operator=(const LineStream&) = delete;

  bool write(Bytes bytes) override { return line_->write(std::move(bytes)); }
  void end() override { line_->finish(true); }
  void abort() override { line_->finish(false); }
  std::size_t waiting_bytes() const override { return line_->waiting_bytes(); }
  void on_drained(std::function<void()> call) override { line_->on_drained(std::move(call)); }

 private:
  const std::shared_ptr<Line> line_;
};

// A second stream of one request: nobody gets it.
class NoStream final : public BodyStream {
 public:
  bool write(Bytes) override { return false; }
  void end() override {}
  void abort() override {}
  std::size_t waiting_bytes() const override { return 0; }
  void on_drained(std::function<void()>) override {}
};

class LineExchange final : public Exchange {
 public:
  LineExchange(std::shared_ptr<Line> line, std::shared_ptr<const HttpRequest> request)
      : line_(std::move(line)), request_(std::move(request)) {}
  ~LineExchange() override {
    if (line_->claim()) line_->tell([](LineEnd& end) { end.answer_dropped(); });
  }
  LineExchange(const LineExchange&) = delete;
  LineExchange& operator=(const LineExchange&) = delete;

  const HttpRequest& request() const override { return *request_; }

  void answer(HttpResponse response) override {
    if (!line_->claim()) return;
    line_->tell([response = std::make_shared<HttpResponse>(std::move(response))](LineEnd& end) {
      end.answer(std::move(*response));
    });
  }

  std::shared_ptr<BodyStream> stream(int status, Headers headers) override {
    if (!line_->claim()) return std::make_shared<NoStream>();
    line_->tell([status, headers = std::make_shared<Headers>(std::move(headers))](LineEnd& end) {
      end.begin_stream(status, std::move(*headers));
    });
    return std::make_shared<LineStream>(line_);
  }

  void on_gone(std::function<void()> call) override { line_->on_gone(std::move(call)); }
  bool gone() const override { return line_->gone(); }

 private:
  const std::shared_ptr<Line> line_;
  const std::shared_ptr<const HttpRequest> request_;
};

}  // namespace

bool Line::claim() {
  const std::lock_guard guard(mutex_);
  return !std::exchange(answered_, true);
}

void Line::tell(std::function<void(LineEnd&)> call) {
  loop_->post([line = shared_from_this(), call = std::move(call)] {
    const std::shared_ptr<LineEnd> end = line->end_.lock();
    if (end && end->serves(*line)) call(*end);
  });
}

void Line::schedule() {
  tell([](LineEnd& end) { end.pump_stream(); });
}

void Line::on_gone(std::function<void()> call) {
  {
    const std::lock_guard guard(mutex_);
    if (!gone_) {
      if (!done_) gone_calls_.push_back(std::move(call));
      return;
    }
  }
  loop_->post(std::move(call));
}

bool Line::gone() const {
  const std::lock_guard guard(mutex_);
  return gone_;
}

bool Line::write(Bytes bytes) {
  bool first = false, taken = false;
  std::deque<Bytes> dropped;
  std::function<void()> drained;
  {
    const std::lock_guard guard(mutex_);
    if (gone_ || ended_ || aborted_ || head_only_) return false;
    if (!bytes || bytes->empty()) return true;
    waiting_ += bytes->size();
    taken = waiting_ <= most_waiting_;
    if (taken) {
      queue_.push_back(std::move(bytes));
    } else {
      aborted_ = true;
      dropped.swap(queue_);
      drained.swap(drained_);
    }
    first = !std::exchange(scheduled_, true) || aborted_;
  }
  if (first) schedule();
  return taken;
}

void Line::finish(bool whole) {
  std::function<void()> drained;
  {
    const std::lock_guard guard(mutex_);
    if (gone_ || ended_ || aborted_) return;
    (whole ? ended_ : aborted_) = true;
    drained.swap(drained_);
    // An end can wait until the connection looks again; an abort is for one that waits for its client.
    if (std::exchange(scheduled_, true) && whole) return;
  }
  schedule();
}

std::size_t Line::waiting_bytes() const {
  const std::lock_guard guard(mutex_);
  return waiting_;
}

void Line::on_drained(std::function<void()> call) {
  std::function<void()> now;
  {
    const std::lock_guard guard(mutex_);
    if (gone_ || ended_ || aborted_) return;
    drained_.swap(call);
    if (waiting_ == 0) now = drained_;
  }
  if (now) loop_->post(std::move(now));
}

bool Line::aborted() const {
  const std::lock_guard guard(mutex_);
  return aborted_;
}

Line::Portion Line::take(std::size_t most) {
  Portion portion;
  const std::lock_guard guard(mutex_);
  scheduled_ = false;
  for (std::size_t bytes = 0; !queue_.empty() && bytes < most; queue_.pop_front()) {
    bytes += queue_.front()->size();
    portion.pieces.push_back(std::move(queue_.front()));
  }
  portion.ended = ended_ && queue_.empty();
  return portion;
}

std::function<void()> Line::sent(std::size_t bytes) {
  const std::lock_guard guard(mutex_);
  waiting_ -= std::min(bytes, waiting_);
  return waiting_ == 0 ? drained_ : nullptr;
}

std::vector<std::function<void()>> Line::set_gone() {
  std::function<void()> drained;
  std::deque<Bytes> dropped;
  std::vector<std::function<void()>> calls;
  const std::lock_guard guard(mutex_);
  if (done_ || gone_) return calls;
  gone_ = true;
  waiting_ = 0;
  drained.swap(drained_);
  dropped.swap(queue_);
  calls.swap(gone_calls_);
  return calls;
}

void Line::set_done() {
  std::vector<std::function<void()>> calls;
  const std::lock_guard guard(mutex_);
  done_ = true;
  calls.swap(gone_calls_);
}

std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Line> line,
                                        std::shared_ptr<const HttpRequest> request) {
  return std::make_shared<LineExchange>(std::move(line), std::move(request));
}

}  // namespace pom::net
