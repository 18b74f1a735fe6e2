// Names out of recordings are text from strangers: made safe to show, and short enough to read.

// Controls, lone surrogates, and characters that are invisible or turn the direction of text.
const UNPRINTABLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** With its lines and indentation, without characters that a reader would obey instead of see. */
export const printable = (text: string): string => text.replace(UNPRINTABLE, "");

/** In at most `width` characters: the middle goes, since generated kernels differ at the ends of their names. */
export function shorten(text: string, width: number): string {
  const line = printable(text.replace(/\s+/g, " "));
  if (line.length <= width) return line;
  const tail = Math.max((width - 1) >> 1, 0);
  return line.slice(0, width - 1 - tail) + "…" + line.slice(line.length - tail);
}

// Frames that are not the user's: of C, of Python's own library, of torch, of what is installed.
const LIBRARY = new RegExp(
  "^<|^nn\\.Module: |(^|/)(torch|torchvision|torchaudio|transformers|triton)/|(site|dist)-packages/|^/usr/lib|" +
    "/lib/python3[^/]*/|^(runpy|contextlib|threading|functools|inspect|typing|enum|os|importlib|collections|" +
    "multiprocessing|concurrent|asyncio|json|random|copy|re|abc|weakref|tokenize|linecache|dataclasses|queue|socket)" +
    "(/\\S+)?\\.py\\(",
);

/** Whether a Python frame (`file(line): function`) is the user's own. */
export const isOwnFrame = (name: string): boolean => /\.py\(\d+\): /.test(name) && !LIBRARY.test(name);

/** `model.py:12` of a frame `path/model.py(12): forward`, or of a path and a line. */
export function place(file: string | null, line: number | null): string {
  return file === null ? "" : `${file.split("/").pop()}${line === null ? "" : `:${line}`}`;
}
