// What the panel says of a range: exact sums of what lies in it.
import type { App } from "../app.ts";
import { type Child, h, link, soft, swatch } from "../dom.ts";
import { kernel, shorten } from "../names.ts";
import * as numbers from "../numbers.ts";
import { facts, dot } from "./detail.ts";
import { statistics, type Sum } from "./statistics.ts";
import type { Store } from "./store.ts";

const us = (ns: number): string => numbers.time(ns / 1000);
const ROWS = 12;

export function rangePanel(app: App, store: Store, [from, to]: [number, number]): Child {
  const found = statistics(store, from, to);
  const several = found.devices.length > 1 && !app.isComparison;
  const name = ({ rank, device }: { rank: number; device: number }) =>
    several ? `rank ${rank} GPU ${device} ` : `${app.rankName(rank)} `.trimStart();
  const length = Math.max(to - from, 1);
  return [
    h("h2", {}, `A range of ${us(to - from)}`),
    soft(`${us(from)} to ${us(to)}; what reaches over its ends is counted in part`),
    facts([
      ["launches that start in it", numbers.count(found.launches)],
      ["device time, summed", us(found.time)],
      ...found.devices.map((device): [string, Child] => [
        `${name(device)}busy`,
        `${us(device.busy)}, ${numbers.percent(device.busy / length)}`,
      ]),
    ]),
    found.devices
      .filter((device) => device.idle.size)
      .map((device) => [
        h("h3", {}, `${name(device)}idle, and why`),
        facts(
          [...device.idle]
            .sort((a, b) => b[1] - a[1])
            .map(([cause, time]): [string, Child] => [cause, [swatch(app.palette.cause(cause)), us(time)]]),
        ),
      ]),
    sums(app, "Categories", found.categories, found.time, (sum) => sum.name),
    sums(app, "Kernels", found.kernels, found.time, (sum) =>
      link(app.kernelHref(sum.name)!, kernel(sum.name, 44)),
    ),
    sums(app, "On the host", found.host, 0, (sum) => link(app.rowHref(sum.rows[0]!), shorten(sum.name, 44))),
  ];
}

function sums(app: App, title: string, rows: Sum[], whole: number, label: (sum: Sum) => Child): Child {
  return (
    rows.length > 0 && [
      h("h3", {}, title),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          rows
            .slice(0, ROWS)
            .map((sum) =>
              h(
                "tr",
                {},
                h("td", { class: "name" }, sum.category && dot(app, sum.category), label(sum)),
                h("td", { class: "number" }, us(sum.time)),
                h(
                  "td",
                  { class: "number soft" },
                  whole ? numbers.percent(sum.time / whole) : `×${numbers.count(sum.count)}`,
                ),
              ),
            ),
        ),
      ),
      rows.length > ROWS && soft(`and ${numbers.count(rows.length - ROWS)} more`),
    ]
  );
}
