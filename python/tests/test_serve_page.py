"""The page of `pom serve` in Chromium, on a mock of the server with the real one's Content-Security-Policy.
In every test: no error on the console, nothing that the policy forbids, no request to another host, and at
most two long connections."""

import re
import struct
import time
from urllib.parse import urlsplit

import pytest

import tools
from serve_page_mock import PAGE, Mock, RefusalError, Stream, serve

sync_api, CHROMIUM = tools.chromium()
expect = sync_api.expect
expect.set_options(timeout=20_000)
WATCH_THE_POLICY = """
window.forbidden = [];
const forbid = ({ violatedDirective }) => window.forbidden.push(violatedDirective);
document.addEventListener("securitypolicyviolation", forbid);
"""

# The frame on the canvas when the second prompt is first highlighted.
WATCH_THE_PROMPT = """() => new MutationObserver(() => {
  if (document.querySelector("[data-number='1'][aria-current]"))
    window.shownAt ??= Number(document.querySelector("[data-testid=live-canvas]").dataset.frame);
}).observe(document.querySelector(".prompts"), { subtree: true, attributes: true })"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A mock, a page on it, and what goes wrong there."""

    def __init__(self, browser, mock, view="make", **settings):
        self.mock, self.server = mock, serve(mock)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | settings)
        self.context.add_init_script(WATCH_THE_POLICY)
        self.page = self.context.new_page()
        self.wrong, self.expected = [], "nothing is expected"
        self.page.on(
            "console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text)
        )
        self.page.on("pageerror", lambda error: self.wrong.append(f"{error}"))
        self.page.on("request", self.asked)
        self.page.goto(f"{self.base}/#{view}")

    def asked(self, request):
        own = (request.url.startswith(self.base), request.url.startswith(f"blob:{self.base}"))
        if not any(own):
            self.wrong.append(f"a request to {request.url}")

    def get(self, name):
        return self.page.get_by_test_id(name)

    def sent(self, method, path):
        """The bodies of the requests so far."""
        return [body for verb, way, _, body in self.mock.seen if (verb, way) == (method, path)]

    def choose(self, name):
        self.page.get_by_role("radio", name=name, exact=True).check()

    def make(self, name="star"):
        self.choose(name)
        self.get("make").click()

    def start(self):
        self.get("live-start").click()
        expect(self.get("live-canvas")).to_have_attribute("data-frame", re.compile("[0-9]+"))

    def frame(self):
        return int(self.get("live-canvas").get_attribute("data-frame"))

    def pixels(self):
        return self.get("live-canvas").evaluate("canvas => canvas.toDataURL()")

    def wait(self, until, patience=20.0):
        """For what the mock sees and the page does not show."""
        end = time.monotonic() + patience
        while not until() and time.monotonic() < end:
            self.page.wait_for_timeout(20)
        return until()

    def close(self):
        forbidden = self.page.evaluate("window.forbidden")
        two_at_most = self.wait(lambda: self.mock.open["events"] <= 1 and self.mock.open["frames"] <= 1)
        self.context.close()
        for stream in self.mock.streams.values():
            stream.state = "ended"
        self.server.shutdown()
        assert [text for text in self.wrong if not re.search(self.expected, text)] == []
        assert forbidden == []
        assert two_at_most


@pytest.fixture
def visit(browser):
    visits = []

    def begin(mock=None, **settings):
        visits.append(Visit(browser, mock or Mock(pace=0.6), **settings))
        return visits[-1]

    yield begin
    for each in visits:
        each.close()


# Make.


def test_a_picture_with_its_previews(visit):
    here = visit(Mock(pace=4))
    here.make("star")
    plate = here.get("plate")
    expect(plate).to_have_attribute("data-previews", re.compile("[1-9]"))
    assert plate.locator("img").get_attribute("src").startswith("blob:")
    expect(here.page.locator("progress")).to_be_visible()
    here.mock.pace = 0.3
    expect(here.get("job")).to_have_attribute("data-state", "completed")
    expect(plate.locator("img")).to_have_attribute("alt", "star")
    assert plate.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 64
    expect(here.get("picture").first.locator("img")).to_have_attribute("alt", "star")
    # What is as the model has it is not sent.
    assert here.sent("POST", "/pom/v1/jobs") == [{"model": "shapes64", "class": "star", "previews": True}]
    headers = next(
        headers for verb, path, headers, _ in here.mock.seen if (verb, path) == ("POST", "/pom/v1/jobs")
    )
    assert len(headers["Idempotency-Key"]) > 20


def test_cancel_and_the_line(visit):
    here = visit(Mock(pace=30))
    here.make("heart")
    expect(here.get("job")).to_have_attribute("data-state", "running")
    here.make("moon")
    here.make("ring")
    expect(here.get("job")).to_have_count(3)
    expect(here.get("job").first.locator("output")).to_contain_text("Number 2 in line, about")
    for _ in range(3):
        here.get("cancel").first.click()
    expect(here.get("cancel")).to_have_count(0)
    assert [job["state"] for job in here.mock.jobs.values()] == ["cancelled"] * 3
    expect(here.get("job").locator("output")).to_have_text("Cancelled")


def test_an_error_at_its_field(visit):
    here = visit()
    here.expected = "400"  # the browser says so of any such answer
    refusal = RefusalError(400, "steps: 20 is too many today", "steps", "out_of_range")
    here.mock.refusals.append(("POST", "/jobs$", refusal))
    here.make()
    field = here.page.locator("#make-view [data-param=steps]")
    expect(field.get_by_role("alert")).to_have_text("Steps: 20 is too many today")
    box = here.page.get_by_role("spinbutton", name="Steps")
    expect(box).to_be_focused()
    expect(box).to_have_attribute("aria-invalid", "true")
    # What the schema forbids is said without asking.
    box.fill("0")
    here.get("make").click()
    expect(field.get_by_role("alert")).to_have_text("This must be from 1 to 250.")
    assert len(here.sent("POST", "/pom/v1/jobs")) == 1
    box.fill("8")
    here.page.keyboard.press("Control+Enter")
    expect(here.get("job")).to_have_count(1)
    expect(field.get_by_role("alert")).to_have_count(0)
    assert here.sent("POST", "/pom/v1/jobs")[1]["steps"] == 8


def test_an_error_without_a_field(visit):
    here = visit()
    here.expected = "429"
    here.mock.refusals.append(("POST", "/jobs$", RefusalError(429, "the queue is full.", code="queue_full")))
    here.make()
    expect(here.page.locator("#make-error")).to_have_text("The queue is full. Try again in 1 s.")


def test_reproduce(visit):
    mock = Mock(pace=0.4)
    mock.fill(1)
    here = visit(mock)
    here.get("picture").click()
    verdict = here.get("reproduce-verdict")
    here.get("reproduce").click()
    expect(verdict).to_have_text("Made again: the pixels agree.")
    mock.agrees = False
    here.get("reproduce").click()
    expect(verdict).to_have_text("Made again: 17 pixels differ.")
    expect(here.get("job")).to_have_count(0)


def test_the_buttons_of_a_picture(visit):
    mock = Mock(pace=0.3)
    mock.fill(30)
    here = visit(mock)
    expect(here.get("picture")).to_have_count(24)
    here.page.get_by_role("button", name="More").click()
    expect(here.get("picture")).to_have_count(30)
    here.get("picture").nth(1).click()
    press = here.page.get_by_role("dialog").get_by_role("button", name=re.compile("")).filter
    with here.page.expect_download() as download:
        press(has_text="Download").click()
    assert re.fullmatch(r"[a-z]+-28\.png", download.value.suggested_filename)
    press(has_text="Use these settings").click()
    expect(here.page.get_by_role("spinbutton", name="Seed")).to_have_value("28")
    here.get("picture").nth(1).click()
    press(has_text="Another seed").click()
    expect(here.get("picture")).to_have_count(31)
    asked = here.sent("POST", "/pom/v1/jobs")[0]
    assert asked["seed"] == -1 and asked["steps"] == 20
    gone = here.get("picture").first.get_attribute("data-id")
    here.get("picture").first.click()
    press(has_text="Delete").click()
    press(has_text="Really delete?").click()
    expect(here.get("picture")).to_have_count(30)
    assert gone not in mock.pictures


def test_clips(visit):
    here = visit()
    here.choose("sprites32")
    expect(here.page.get_by_role("heading", level=2)).to_have_text("Make a clip")
    here.page.get_by_role("button", name="a pink heart").click()
    here.get("make").click()
    video = here.get("picture").locator("video")
    expect(video).to_have_js_property("paused", False)
    assert video.evaluate("video => video.src").startswith("blob:")
    here.mock.clip_type = "image/gif"
    here.get("make").click()
    expect(here.get("picture").first.locator("img[data-kind='image/gif']")).to_be_visible()
    here.get("picture").nth(1).click()
    expect(here.page.locator("dialog video")).to_have_js_property("controls", True)
    expect(here.get("reproduce")).to_be_hidden()
    here.page.goto(f"{here.base}/#live")
    expect(here.page.get_by_role("dialog")).to_have_count(0)


def test_reload_in_the_middle(visit):
    here = visit(Mock(pace=6))
    here.make("moon")
    expect(here.get("plate")).to_have_attribute("data-previews", re.compile("[1-9]"))
    here.page.reload()
    expect(here.get("job")).to_have_attribute("data-state", "running")
    here.mock.pace = 0.3
    expect(here.page.get_by_role("heading", name="moon")).to_be_visible()
    expect(here.get("job")).to_have_attribute("data-state", "completed")
    expect(here.get("picture")).to_have_count(1)


def test_the_connection_comes_back(visit):
    here = visit()
    here.expected = "503|ERR_INCOMPLETE|ERR_CONNECTION|ERR_EMPTY"
    here.make()
    expect(here.get("picture")).to_have_count(1)
    here.mock.cut.set()
    note = here.page.locator("#lost")
    expect(note).to_have_text("Connection lost, trying again")
    expect(note).to_be_visible()
    here.mock.submit({"class": "ring"})  # meanwhile, from elsewhere
    here.mock.cut.clear()
    expect(note).to_be_hidden()
    expect(here.get("picture")).to_have_count(2)
    headers = [headers for _, path, headers, _ in here.mock.seen if path == "/pom/v1/events"]
    assert int(headers[-1]["Last-Event-ID"]) > 0


def test_by_keyboard_alone(visit):
    here = visit()
    expect(here.get("make")).to_be_visible()
    press, focus = here.page.keyboard.press, here.page.locator(":focus")

    def tab_to(test):
        for _ in range(40):
            press("Tab")
            if focus.count() and focus.evaluate(test):
                return focus
        raise AssertionError(f"Tab does not lead to {test}")

    tab_to("node => node.value === 'circle'")
    for _ in range(3):
        press("ArrowRight")
    expect(focus).to_have_value("star")
    outline = "node => getComputedStyle(node.closest('.chip') ?? node).outlineStyle"
    assert focus.evaluate(outline) == "solid"
    tab_to("node => node.dataset.testid === 'make'")
    assert focus.evaluate(outline) == "solid"
    press("Enter")
    expect(here.get("picture")).to_have_count(1)
    tab_to("node => node.dataset.testid === 'picture'")
    press("Enter")
    expect(here.page.get_by_role("dialog")).to_be_visible()
    tab_to("node => node.dataset.testid === 'reproduce'")
    press("Enter")
    expect(here.get("reproduce-verdict")).to_contain_text("the pixels agree")
    press("Escape")
    expect(focus).to_have_attribute("data-testid", "picture")


def test_the_key(visit):
    mock = Mock(key="open sesame", pace=0.3)
    mock.fill(1)
    here = visit(mock)
    here.expected = "401"
    field = here.page.get_by_role("textbox", name="Key")
    field.fill("wrong")
    here.page.keyboard.press("Enter")
    expect(here.page.get_by_text("That key was not accepted.")).to_be_visible()
    field.fill("open sesame")
    here.page.keyboard.press("Enter")
    image = here.get("picture").locator("img")
    expect(image).to_have_attribute("src", re.compile("^blob:"))
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 64
    here.page.reload()
    here.make()
    expect(here.get("picture")).to_have_count(2)


# Live.


def test_a_stream_moves(visit):
    here = visit(view="live")
    expect(here.get("live-start")).to_be_visible()
    here.page.keyboard.press("Tab")
    here.page.keyboard.press("Enter")  # skips to the page, which stays where it is
    expect(here.page.locator("#view")).to_be_focused()
    here.start()
    assert here.page.evaluate("scrollY") == 0
    seen = set()
    assert here.wait(lambda: seen.add(here.pixels()) or len(seen) >= 4)
    first = here.frame()
    assert here.wait(lambda: here.frame() >= first + 4)
    assert here.page.url.endswith(f"#live/{next(iter(here.mock.streams))}")
    # Out of sight nothing is fetched.
    here.page.get_by_role("link", name="Make").click()
    assert here.wait(lambda: here.mock.open["frames"] == 0)
    here.page.get_by_role("link", name="Live").click()
    assert here.wait(lambda: here.mock.open["frames"] == 1)
    left = here.frame()
    assert here.wait(lambda: here.frame() > left)
    hide = "hidden => { window.isHidden = hidden; document.dispatchEvent(new Event('visibilitychange')); }"
    here.page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.isHidden })")
    here.page.evaluate(hide, True)
    assert here.wait(lambda: here.mock.open["frames"] == 0)
    here.page.evaluate(hide, False)
    assert here.wait(lambda: here.mock.open["frames"] == 1)


def test_a_prompt_is_highlighted_when_it_shows(visit):
    here = visit(view="live")
    here.start()
    here.page.keyboard.press("Escape")
    here.get("live-canvas").click()
    here.page.keyboard.press("/")
    expect(here.get("live-prompt")).to_be_focused()
    here.get("live-prompt").fill("a pink heart drifts to the left over black")
    here.page.evaluate(WATCH_THE_PROMPT)
    here.page.keyboard.press("Enter")
    expect(here.page.locator(".said")).to_have_text(re.compile(r"From frame \d+: in [012]\.\d s"))
    item = here.page.locator("[data-testid=prompt-item][data-number='1']")
    expect(item).to_have_attribute("aria-current", "true")
    begins = int(re.search(r"from frame (\d+)", item.inner_text()).group(1))
    assert begins <= here.page.evaluate("window.shownAt") <= begins + 2 * Stream.BLOCK
    expect(item).to_have_text(re.compile("on screen"))
    expect(here.page.locator("[data-testid=prompt-item][aria-current]")).to_have_count(1)
    here.page.reload()
    expect(item).to_have_attribute("aria-current", "true")


def recorded(here):
    here.page.get_by_role("button", name="Record").click()
    here.page.wait_for_timeout(600)
    with here.page.expect_download() as download:
        here.page.get_by_role("button", name="Save").click()
    return download.value


def test_pause_fork_record_stop_new(visit):
    here = visit(view="live")
    here.start()
    here.page.keyboard.press("Tab")
    here.get("live-canvas").click()
    here.page.locator("#view").focus()
    here.page.keyboard.press("Space")
    expect(here.page.locator("#live-watch .state")).to_have_text("paused")
    assert [stream.state for stream in here.mock.streams.values()] == ["paused"]
    here.get("live-pause").click()
    expect(here.page.locator("#live-watch .state")).to_have_text("live")
    saved = recorded(here)
    assert saved.suggested_filename.endswith(".mp4")
    data, kinds, at = saved.path().read_bytes(), [], 0
    while at < len(data):  # whole boxes, and no fragment without its frames
        size, kind = struct.unpack_from(">I4s", data, at)
        kinds.append(kind)
        at += size
    assert at == len(data) and kinds[:2] == [b"ftyp", b"moov"] and kinds[-1] == b"mdat", kinds
    here.expected = "400"
    here.mock.refusals.append(("GET", "video.mp4", RefusalError(400, "no FFmpeg", code="not_supported")))
    saved = recorded(here)  # what the canvas shows
    assert saved.suggested_filename.endswith(".webm") and saved.path().stat().st_size > 500
    here.get("live-fork").click()
    assert here.wait(lambda: len(here.mock.streams) == 2)
    one, two = here.mock.streams
    assert here.mock.streams[two].forked_from == one
    assert here.wait(lambda: here.page.url.endswith(two))
    here.get("live-stop").click()
    expect(here.page.locator("#live-watch .state")).to_have_text("ended")
    assert here.wait(lambda: here.mock.open["frames"] == 0)
    here.page.locator("#view").focus()
    here.page.keyboard.press("n")
    expect(here.page.get_by_role("textbox", name="Prompt")).to_be_focused()
    here.page.locator("#live-others button").click()
    assert here.wait(lambda: here.mock.open["frames"] == 1)
    assert here.page.url.endswith(one)


def test_frames_come_back(visit):
    here = visit(view="live")
    here.expected = "503|ERR_INCOMPLETE|ERR_CONNECTION|ERR_EMPTY"
    here.start()
    here.mock.cut.set()
    expect(here.page.get_by_text("No frames arrive, trying again")).to_be_visible()
    here.mock.cut.clear()
    left = here.frame()
    assert here.wait(lambda: here.frame() > left)
    expect(here.page.get_by_text("No frames arrive, trying again")).to_be_hidden()


def test_motion_is_asked_for(visit):
    here = visit(view="live", reduced_motion="reduce")
    here.start()
    expect(here.page.locator("#live-watch .state")).to_have_text("paused")
    assert here.wait(lambda: here.mock.open["frames"] == 0)
    still = here.frame()
    here.page.wait_for_timeout(500)
    assert here.frame() == still
    here.get("live-pause").click()
    assert here.wait(lambda: here.frame() > still)


# What holds everywhere.


def test_the_readers_take_any_pieces(visit):
    here = visit()
    got = here.page.evaluate(
        """async () => {
          const { Frames } = await import("/assets/frames.js");
          const { Records } = await import("/assets/events.js");
          const frame = (index, length) => {
            const bytes = new Uint8Array(20 + length).fill(index), head = new DataView(bytes.buffer);
            head.setUint32(0, length, true);
            head.setUint32(4, index, true);
            head.setBigUint64(8, BigInt(index) * 125000n, true);
            head.setUint32(16, index >> 1, true);
            return [...bytes];
          };
          const bytes = Uint8Array.from([...frame(1, 7), ...frame(2, 0), ...frame(3, 300)]);
          const text = ": hello\\n\\nid: 4\\nevent: job\\ndata: {\\ndata: }\\r\\n\\nevent: x\\ndata:y\\n\\n";
          const out = new Set();
          for (let size = 1; size < bytes.length; size++) {
            const frames = new Frames(), records = new Records(), found = [];
            for (let at = 0; at < bytes.length; at += size)
              for (const { index, time, prompt, png } of frames.push(bytes.subarray(at, at + size)))
                found.push([index, time, prompt, png.length]);
            for (let at = 0; at < text.length; at += size)
              for (const record of records.push(text.slice(at, at + size))) found.push(record);
            out.add(JSON.stringify(found));
          }
          return [...out].map(JSON.parse);
        }"""
    )
    frames = [[1, 125, 0, 7], [2, 250, 1, 0], [3, 375, 1, 300]]
    records = [{"id": "4", "event": "job", "data": "{\n}"}, {"event": "x", "data": "y"}]
    assert got == [frames + records]


def test_a_viewer_that_is_behind_skips(visit):
    """Twenty frames at once, then one by one: what is more than two blocks old is not shown."""
    here = visit()
    drawn = here.page.evaluate(
        """async () => {
          const { Player } = await import("/assets/frames.js");
          const canvas = new OffscreenCanvas(2, 2);
          canvas.getContext("2d").fillRect(0, 0, 1, 1);
          const png = await canvas.convertToBlob();
          const image = new Uint8Array(await png.arrayBuffer());
          const frame = (index) => {
            const bytes = new Uint8Array(20 + image.length), head = new DataView(bytes.buffer);
            head.setUint32(0, image.length, true);
            head.setUint32(4, index, true);
            head.setBigUint64(8, BigInt(index) * 50000n, true);
            bytes.set(image, 20);
            return bytes;
          };
          const body = new ReadableStream({
            async start(stream) {
              stream.enqueue(Uint8Array.from(Array.from({ length: 20 }, (_, i) => [...frame(i)]).flat()));
              for (let i = 20; i < 24; i++) {
                await new Promise((done) => setTimeout(done, 50));
                stream.enqueue(frame(i));
              }
            },
          });
          window.fetch = async () => new Response(body);
          const drawn = [];
          const player = new Player({ draw: ({ index }) => drawn.push(index), ended: () => true, lost() {} });
          player.start({ id: "x", fps: 20, block_frames: 2 });
          await new Promise((done) => setTimeout(done, 900));
          player.close();
          return drawn;
        }"""
    )
    assert drawn[0] >= 14 and drawn[-1] == 23 and drawn == sorted(drawn)


@pytest.mark.parametrize("width", [320, 1920])
def test_no_sideways_scroll(visit, width):
    mock = Mock(pace=0.3)
    mock.fill(5)
    here = visit(mock, viewport={"width": width, "height": 700})
    overflow = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
    here.page.locator("#make-view summary").last.click()
    here.make()
    expect(here.get("picture")).to_have_count(6)
    assert here.page.evaluate(overflow) == 0
    here.get("picture").first.click()
    inside = "dialog => dialog.scrollWidth - dialog.clientWidth"
    assert here.page.locator("dialog[open]").evaluate(inside) == 0
    here.page.keyboard.press("Escape")
    here.page.get_by_role("link", name="Live").click()
    expect(here.get("live-start")).to_be_visible()
    assert here.page.evaluate(overflow) == 0
    here.start()
    assert here.page.evaluate(overflow) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe(visit, scheme):
    axe = tools.axe()
    mock = Mock(pace=0.3)
    mock.fill(9)
    here = visit(mock, color_scheme=scheme, reduced_motion="reduce")
    here.expected = "400"

    def violations():
        return [(found["id"], found["nodes"][0]["html"]) for found in axe.run(here.page)["violations"]]

    here.mock.refusals.append(("POST", "/jobs$", RefusalError(400, "no such class", "class")))
    here.make()
    expect(here.page.get_by_role("alert").filter(has_text="No such class")).to_be_visible()
    for summary in here.page.locator("#make-view summary").all():
        summary.click()
    here.page.keyboard.press("Control+Enter")
    expect(here.get("picture")).to_have_count(10)
    assert violations() == []
    here.choose("sprites32")
    here.get("picture").first.click()
    assert violations() == []
    here.page.keyboard.press("Escape")
    here.page.get_by_role("link", name="Live").click()
    expect(here.get("live-start")).to_be_visible()
    assert violations() == []
    here.start()
    assert violations() == []


def test_colours_are_kept(visit):
    here = visit(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = here.page.evaluate(paper)
    here.get("theme").click()
    expect(here.get("theme")).to_have_accessible_name("Colours: light")
    light = here.page.evaluate(paper)
    here.page.reload()
    assert light != dark and here.page.evaluate(paper) == light
    here.get("theme").click()
    assert here.page.evaluate(paper) == dark


def test_the_files():
    files = {path.name: path.read_text() for path in PAGE.iterdir()}
    assert sum(len(text.encode()) for text in files.values()) <= 100_000
    for name, text in files.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|data:\w+/", text), name
        hosts = {urlsplit(found).hostname for found in re.findall(r"https?://[^\s\"'<)]+", text)}
        assert hosts <= {"www.w3.org", "localhost"}, name
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script>", files["index.html"])
    assert "curl" in re.search("<noscript>.*</noscript>", files["index.html"], re.S)[0]
