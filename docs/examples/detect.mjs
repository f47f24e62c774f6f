// Lists the objects in a picture, and saves the picture with them: node detect.mjs URL FILE OUT MODEL
import { readFile, writeFile } from "node:fs/promises";

const [url, file, out, model] = process.argv.slice(2);
if (!model) {
  console.error("usage: node detect.mjs URL FILE OUT MODEL, such as: node detect.mjs http://127.0.0.1:8070 a.jpg b.jpg pets");
  process.exit(1);
}

const token = process.env.FIRSTLINE_TOKEN;
const address = new URL(`/firstline/v1/models/${encodeURIComponent(model)}/infer?min_score=0.3`, url);

async function ask(accept) {
  const response = await fetch(address, {
    method: "POST",
    headers: { Accept: accept, ...(token && { Authorization: `Bearer ${token}` }) },
    body: await readFile(file),
  });
  if (response.ok) return response;
  const { code, error } = await response.json();
  throw new Error(`${code}: ${error}`);
}

const answer = await (await ask("application/json")).json();
for (const { label, score, box } of answer.objects) {
  const [x1, y1, x2, y2] = [box.x1, box.y1, box.x2, box.y2].map(Math.round);
  console.log(`${label} (${score.toFixed(2)}) at ${x1},${y1} to ${x2},${y2}`);
}
await writeFile(out, Buffer.from(await (await ask("image/jpeg")).arrayBuffer()));
console.log(`${answer.count} in ${answer.width}x${answer.height} pixels, ${answer.tier}: ${answer.status}`);
