// The whole recording on one strip, and what of it is seen: a drag moves there.
import type { App } from "../app.ts";
import { inks, painted, type Painted } from "../canvas.ts";
import type { View } from "./draw.ts";
import { gallop, type Store } from "./store.ts";

const HEIGHT = 30,
  ROWS = 5, // devices; of more the first are drawn
  LEAST = 6; // pixels of the window

export function minimap(
  app: App,
  store: Store,
  view: View,
  show: (from: number, to: number) => void,
): Painted {
  const devices = [
    ...new Set(
      store.lanes.filter(({ kind }) => kind === "stream").map(({ rank, device }) => `${rank}/${device}`),
    ),
  ].slice(0, ROWS);
  const lines = store.lines.filter(({ lane }) => store.lanes[lane]!.kind === "stream");
  const strip = painted("the whole recording; drag moves what is seen", HEIGHT, (context, width) => {
    const { page, track, accent } = inks();
    const perPixel = store.end / width || 1;
    context.fillStyle = track;
    context.fillRect(0, 0, width, HEIGHT);
    const tall = (HEIGHT - 4) / Math.max(devices.length, 1);
    for (const { lane, rows } of lines) {
      const { rank, device } = store.lanes[lane]!;
      const row = devices.indexOf(`${rank}/${device}`);
      for (let at = 0; row >= 0 && at < rows.length;) {
        const left = store.start[rows[at]!]! / perPixel,
          wide = store.duration[rows[at]!]! / perPixel;
        context.fillStyle = app.palette.category(store.nameOf(rows[at]!).category);
        context.fillRect(left, 2 + row * tall, Math.max(wide, 0.7), tall - 1);
        at = wide >= 1 ? at + 1 : gallop(rows, (Math.floor(left) + 1) * perPixel, store.endOf, at + 1);
      }
    }
    const from = Math.max(0, view.from / perPixel),
      wide = Math.max(Math.min(view.to / perPixel, width) - from, LEAST);
    context.fillStyle = page;
    context.globalAlpha = 0.55;
    context.fillRect(0, 0, from, HEIGHT);
    context.fillRect(from + wide, 0, width, HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = accent;
    context.lineWidth = 2;
    context.strokeRect(from + 1, 1, wide - 2, HEIGHT - 2);
  });
  strip.canvas.tabIndex = -1; // the timeline's own keys do the same
  let grip = 0; // from the window's middle, in nanoseconds
  const time = (event: PointerEvent): number => (event.offsetX / strip.width()) * store.end;
  const move = (event: PointerEvent): void => {
    const half = (view.to - view.from) / 2,
      middle = time(event) - grip;
    show(middle - half, middle + half);
  };
  strip.canvas.addEventListener("pointerdown", (event) => {
    strip.canvas.setPointerCapture(event.pointerId);
    const isInside = time(event) >= view.from && time(event) <= view.to;
    grip = isInside ? time(event) - (view.from + view.to) / 2 : 0;
    move(event);
  });
  strip.canvas.addEventListener("pointermove", (event) => event.buttons && move(event));
  strip.canvas.addEventListener("dblclick", () => show(0, store.end));
  return strip;
}
