// How quantities are written: as src/kinetoscope/numbers.py writes them, three significant digits.

type Units = [unit: string, factor: number][];
const TIMES: Units = Object.entries({ s: 1e6, ms: 1e3, µs: 1, ns: 1e-3 });
const SIZES: Units = Object.entries({ GB: 1e9, MB: 1e6, kB: 1e3, B: 1 });
const RATES: Units = Object.entries({ T: 1e12, G: 1e9, M: 1e6, k: 1e3, "": 1 });
const SPACE = "\u00a0"; // a number and its unit stay together

/** Less than half of the last digit of a nanosecond is none. */
export const time = (us: number): string => (Math.abs(us) >= 5e-7 ? scaled(us, TIMES) : `0${SPACE}µs`);
export const ns = (nanoseconds: number): string => time(nanoseconds / 1000);
/** To the nanosecond, as `115,834.120 µs`: for what a timeline points at. */
export const exact = (ns: number): string =>
  (ns / 1000).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 }) + `${SPACE}µs`;
/** A difference of times with its sign. */
export const change = (us: number): string => `${us < 0 ? "−" : "+"}${time(Math.abs(us))}`;
export const seconds = (s: number): string => time(s * 1e6);
export const size = (bytes: number): string => (bytes ? scaled(bytes, SIZES) : `0${SPACE}B`);
export const rate = (perSecond: number, unit: string): string => scaled(perSecond, RATES) + `${unit}/s`;

/** Bytes, and how fast they went in so many seconds. */
export const moved = (bytes: number, s: number): string => `${size(bytes)}, ${rate(bytes / s, "B")}`;

const FAR = 0.005; // of the upper end: in its unit the lower one has no digit left

/** `1.20–18.3 ms`: both in the unit of the upper end, unless they are too far apart for that. */
export function span(low: number, high: number): string {
  if (!high) return time(0);
  if (low > 0 && low < FAR * high) return `${time(low)}–${time(high)}`;
  const [upper, unit] = time(high).split(SPACE) as [string, string];
  const factor = TIMES.find(([name]) => name === unit)![1];
  const lower = digits(low / factor);
  return lower === upper ? `${lower}${SPACE}${unit}` : `${lower}–${upper}${SPACE}${unit}`;
}

/** The same where the lower end may be a loss. */
export const range = (low: number, high: number): string =>
  low < 0 ? `${time(low)} to ${time(high)}` : span(low, high);

export function percent(fraction: number): string {
  if (fraction > 0 && fraction < 0.0005) return `<0.1${SPACE}%`;
  if (fraction >= 0.9995 && fraction < 1) return `>99.9${SPACE}%`;
  return `${(100 * fraction).toFixed(fraction === 0 || fraction === 1 ? 0 : 1)}${SPACE}%`;
}

export function count(number: number, noun = ""): string {
  const written = number.toLocaleString("en-US", { maximumFractionDigits: 0 });
  if (!noun) return written;
  return `${written} ${number === 1 ? noun : plural(noun)}`;
}

function plural(noun: string): string {
  if (/[^aeiou]y$/.test(noun)) return noun.slice(0, -1) + "ies";
  return noun + (/(ch|sh|s)$/.test(noun) ? "es" : "s");
}

function scaled(value: number, units: Units): string {
  const [unit, factor] = units.find(([, factor]) => Math.abs(value) / factor >= 0.9995) ?? units.at(-1)!;
  return `${digits(value / factor)}${SPACE}${unit}`;
}

function digits(value: number): string {
  const magnitude = Math.abs(value);
  if (magnitude >= 99.95) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  if (magnitude >= 9.995) return value.toFixed(1);
  return magnitude >= 0.0005 ? value.toFixed(2) : "0";
}

/** A sentence whose numbers stay with their units. */
export const together = (text: string): string => text.replace(/(?<=\d) (?=(?:s|ms|µs|ns)\b|%)/g, SPACE);

/** A dash for what is not known. */
export const known = (value: number | null, write: (value: number) => string): string =>
  value === null ? "–" : write(value);
