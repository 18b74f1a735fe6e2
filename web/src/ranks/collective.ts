// One collective over its ranks: when each arrived, how long it waited, how long the transfer took.
import type { App } from "../app.ts";
import { hovered, inks, painted } from "../canvas.ts";
import type { CollectiveInstance } from "../document.ts";
import { h, legend } from "../dom.ts";
import * as numbers from "../numbers.ts";

const HIGHEST = 20,
  MOST = 420,
  FOOT = 18,
  LETTERS = 12;

export function collective(app: App, one: CollectiveInstance): HTMLElement {
  const whole = Math.max(...one.left_us) || 1;
  const order = one.ranks.map((_, place) => place);
  const few = one.ranks.length <= 32;
  if (!few) order.sort((a, b) => one.arrived_us[a]! - one.arrived_us[b]! || a - b);
  const tall = Math.min(HIGHEST, MOST / order.length);
  const side = 62;
  const paint = (context: CanvasRenderingContext2D, width: number): void => {
    const ink = inks();
    const x = (us: number): number => side + ((width - side) * us) / whole;
    const every = Math.ceil(LETTERS / tall);
    order.forEach((place, row) => {
      const top = Math.floor(row * tall),
        high = tall > 6 ? tall - 2 : Math.ceil(row * tall + tall) - top;
      const [arrival, left] = [one.arrived_us[place]!, one.left_us[place]!];
      const complete = Math.min(arrival + (one.waiting_us[place] ?? 0), left);
      context.fillStyle = ink.track;
      context.fillRect(side, top, width - side, high);
      context.fillStyle = app.palette.cause("waiting-for-rank");
      context.fillRect(x(arrival), top, x(complete) - x(arrival), high);
      context.fillStyle = app.palette.use("communication");
      context.fillRect(x(complete), top, Math.max(x(left) - x(complete), 1), high);
      if (row % every === 0 && few) {
        context.fillStyle = ink.ink;
        context.textAlign = "right";
        context.fillText(`rank ${one.ranks[place]}`, side - 6, top + tall / 2 + 4);
      }
    });
    context.fillStyle = ink.soft;
    const bottom = order.length * tall + 14;
    if (!few) {
      context.textAlign = "right";
      context.fillText("first", side - 6, 12);
      context.fillText("last", side - 6, order.length * tall - 2);
    }
    [0, 0.5, 1].forEach((part) => {
      context.textAlign = part === 0 ? "left" : part === 1 ? "right" : "center";
      context.fillText(numbers.time(part * whole), x(part * whole), bottom);
    });
  };
  const latest = Math.max(...one.arrived_us),
    last = one.ranks[one.arrived_us.indexOf(latest)];
  const view = painted(
    `${one.kind} of ${one.ranks.length} ranks in ${one.step || "no step"}; the last to arrive is rank ${last}`,
    order.length * tall + FOOT,
    paint,
  );
  hovered(view, (_, top) => {
    const place = order[Math.floor(top / tall)];
    return place === undefined ? null : sentence(one, place);
  });
  return h(
    "div",
    h("p", `The last to arrive is rank ${last}, ${numbers.time(latest)} after the first.`),
    view.element,
    legend(
      [
        ["var(--track)", "not yet arrived"],
        [app.palette.cause("waiting-for-rank"), "waits for other ranks"],
        [app.palette.use("communication"), "transfer"],
      ],
      !few && "one line per rank, in the order of their arrival",
    ),
  );
}

function sentence(one: CollectiveInstance, place: number): string {
  const waited = one.waiting_us[place] ?? 0,
    transfer = one.left_us[place]! - one.arrived_us[place]! - waited;
  return `rank ${one.ranks[place]}: arrived after ${numbers.time(one.arrived_us[place]!)}, waited ${numbers.time(waited)}, transfer ${numbers.time(Math.max(transfer, 0))}`;
}
