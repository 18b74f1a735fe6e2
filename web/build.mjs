// Builds the page's script and style into the Python package. `--tests` builds the unit tests instead;
// `--check` writes nothing and fails where the package holds something else than the source builds to.
import { build } from "esbuild";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const PACKAGE = new URL("../src/kinetoscope/report/pages/templates/", import.meta.url);
const MOST = 300_000; // bytes of the bundle
const shared = { bundle: true, charset: "utf8", legalComments: "none", logLevel: "warning" };

if (process.argv.includes("--tests")) {
  const tests = readdirSync("tests").filter((name) => name.endsWith(".test.ts"));
  await build({
    ...shared,
    entryPoints: tests.map((name) => `tests/${name}`),
    outdir: ".tests",
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".mjs" },
  });
} else {
  const built = await build({
    ...shared,
    entryPoints: { page: "src/main.ts" },
    outdir: "out",
    write: false,
    minify: true,
    target: "es2022",
    format: "iife",
  });
  const size = built.outputFiles.reduce((sum, file) => sum + file.contents.length, 0);
  if (size > MOST) throw new Error(`the bundle has ${size} bytes, more than ${MOST}`);
  for (const file of built.outputFiles) {
    const target = new URL(file.path.split("/").pop(), PACKAGE);
    if (!process.argv.includes("--check")) writeFileSync(target, file.contents);
    else if (readFileSync(target, "utf8") !== file.text)
      throw new Error(`${target.pathname} is not what web/ builds to: run npm run build in web/`);
  }
  console.log(`bundle: ${size} bytes`);
}
