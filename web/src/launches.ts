// The launches of each kernel, out of the timeline: their rows, and their times in microseconds.
import type { App } from "./app.ts";

const known = new WeakMap<App, Map<string, Uint32Array>>();

/** Places among device work by the kernel's name, each in the order of the lanes. */
export function worksByName(app: App): Map<string, Uint32Array> {
  const cached = known.get(app);
  if (cached) return cached;
  const { store } = app;
  const counts = new Map<number, number>();
  store?.work.forEach((row) => counts.set(store.name[row]!, (counts.get(store.name[row]!) ?? 0) + 1));
  const byName = new Map<string, Uint32Array>(),
    filled = new Map<string, number>();
  for (const [code, count] of counts) {
    const { name } = store!.names[code]!;
    filled.set(name, (filled.get(name) ?? 0) + count);
  }
  for (const [name, count] of filled) byName.set(name, new Uint32Array(count));
  filled.forEach((_, name) => filled.set(name, 0));
  store?.work.forEach((row, work) => {
    const { name } = store.nameOf(row);
    const at = filled.get(name)!;
    byName.get(name)![at] = work;
    filled.set(name, at + 1);
  });
  known.set(app, byName);
  return byName;
}

export const works = (app: App, name: string): Uint32Array => worksByName(app).get(name) ?? new Uint32Array();

export const times = (app: App, name: string): Float64Array =>
  Float64Array.from(works(app, name), (work) => app.store!.duration[app.store!.work[work]!]! / 1000);
