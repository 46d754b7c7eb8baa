// Where a sprite is at a time, and the other way round.
//
// The same bytes on every machine, as in draw_shape.cpp: sums, products, quotients and comparisons alone.
#include <algorithm>
#include <cmath>

#include "pom/base/error.h"
#include "pom/data/exact_math.h"
#include "pom/data/sprites.h"

namespace pom::data {
namespace {

constexpr float whole_turn = static_cast<float>(2 * exact::pi);

double turn(double turns) {  // what is left of whole turns
  return turns - std::floor(turns);
}

// From -1 through 1 and back in one turn, at an even pace.
double to_and_fro(double turns) {
  const double t = turn(turns);
  return t < 0.5 ? 4 * t - 1 : 3 - 4 * t;
}

// Into [-side/2, side/2).
double wrapped(double place, double side) {
  return side * (turn(place / side + 0.5) - 0.5);
}

// No shape reaches farther, in radii.
constexpr double farthest = 1.09;

struct Place {
  double x, y;
};

// How far from the middle a whole sprite may be.
Place room_of(const Sprite& sprite, double w, double h) {
  return {0.5 * w - farthest * sprite.radius, 0.5 * h - farthest * sprite.radius};
}

exact::Direction way_of(const Sprite& sprite) {
  return exact::direction(static_cast<double>(sprite.direction) * (exact::pi / 4));
}

// Of a bounce, from the middle of its line to an end. Along a diagonal it goes from corner to corner of the
// largest square in the middle.
double half_line(const Sprite& sprite, const Place& room) {
  const bool level = sprite.direction == 0, upright = sprite.direction == 2;
  return level ? room.x : upright ? room.y : std::min(room.x, room.y) / way_of(sprite).sine;
}

Place bounced(const Sprite& sprite, double seconds, double w, double h) {
  const Place room = room_of(sprite, w, h);
  const exact::Direction way = way_of(sprite);
  const bool level = sprite.direction == 0, upright = sprite.direction == 2;
  const double half = half_line(sprite, room);
  const double along = half * to_and_fro(sprite.phase + sprite.speed * seconds / (4 * half));
  return {along * way.cosine + (upright ? 2 * sprite.x * room.x : 0),
          along * way.sine + (level ? 2 * sprite.y * room.y : 0)};
}

// Over the edges it goes only where its way leads: else it would be cut in two for ever.
Place drifted(const Sprite& sprite, double seconds, double w, double h) {
  const Place room = room_of(sprite, w, h);
  const exact::Direction way = way_of(sprite);
  const bool stays = sprite.motion == Motion::stay, level = sprite.direction % 4 == 0,
             upright = sprite.direction % 4 == 2;
  const double gone = sprite.speed * seconds;
  return {stays || upright ? 2 * sprite.x * room.x : wrapped(sprite.x * w + gone * way.cosine, w),
          stays || level ? 2 * sprite.y * room.y : wrapped(sprite.y * h + gone * way.sine, h)};
}

// A place as a share of the room, as near as there is room.
float share_of(double place, double room) {
  return static_cast<float>(std::clamp(place / (2 * room), -0.5, 0.5));
}

// On the way that the sprite's phase was on: there or back.
void put_on_line(Sprite& sprite, const Place& place, double seconds, double w, double h) {
  const Place room = room_of(sprite, w, h);
  const exact::Direction way = way_of(sprite);
  const double half = half_line(sprite, room);
  const double along = std::clamp((place.x * way.cosine + place.y * way.sine) / half, -1.0, 1.0);
  const double turns = sprite.phase < 0.5f ? (along + 1) / 4 : (3 - along) / 4;
  sprite.phase = static_cast<float>(turn(turns - sprite.speed * seconds / (4 * half)));
  sprite.x = share_of(place.x, room.x);
  sprite.y = share_of(place.y, room.y);
}

void put_on_way(Sprite& sprite, const Place& place, double seconds, double w, double h) {
  const Place room = room_of(sprite, w, h);
  const exact::Direction way = way_of(sprite);
  const bool stays = sprite.motion == Motion::stay, level = sprite.direction % 4 == 0,
             upright = sprite.direction % 4 == 2;
  const double gone = sprite.speed * seconds;
  sprite.x = stays || upright ? share_of(place.x, room.x)
                              : static_cast<float>(turn((place.x - gone * way.cosine) / w + 0.5) - 0.5);
  sprite.y = stays || level ? share_of(place.y, room.y)
                            : static_cast<float>(turn((place.y - gone * way.sine) / h + 0.5) - 0.5);
}

}  // namespace

Shape sprite_at(const Sprite& sprite, double seconds, std::int64_t width, std::int64_t height) {
  check(width > 0 && height > 0, "sprite_at: size: expected at least 1x1, got ", width, "x", height);
  const auto unit = static_cast<double>(std::min(width, height));
  const double w = static_cast<double>(width) / unit, h = static_cast<double>(height) / unit;
  const Place place =
      sprite.motion == Motion::bounce ? bounced(sprite, seconds, w, h) : drifted(sprite, seconds, w, h);
  // Between its full size and 0.64 of it.
  const double growth = 0.82 + 0.18 * exact::direction(2 * exact::pi * turn(sprite.pulse * seconds)).cosine;
  Shape shape;
  shape.kind = sprite.kind;
  shape.hue = sprite.hue;
  shape.x = static_cast<float>(place.x);
  shape.y = static_cast<float>(place.y);
  shape.radius = static_cast<float>(sprite.radius * (sprite.pulse > 0 ? growth : 1.0));
  shape.angle = whole_turn * static_cast<float>(turn(sprite.angle + sprite.spin * seconds));
  std::copy(std::begin(sprite.colour), std::end(sprite.colour), std::begin(shape.colour));
  return shape;
}

void move_sprite(Sprite& sprite, double x, double y, double seconds, std::int64_t width,
                 std::int64_t height) {
  check(width > 0 && height > 0, "move_sprite: size: expected at least 1x1, got ", width, "x", height);
  const auto unit = static_cast<double>(std::min(width, height));
  const double w = static_cast<double>(width) / unit, h = static_cast<double>(height) / unit;
  if (sprite.motion == Motion::bounce)
    put_on_line(sprite, {x, y}, seconds, w, h);
  else
    put_on_way(sprite, {x, y}, seconds, w, h);
}

}  // namespace pom::data
