"use strict";
// One request at a time: the next picture is asked for when the last has been drawn, so a slow viewer skips some.
const find = (name) => document.getElementById(name);
const grouped = (number) => number.toLocaleString("en-GB");
const short = (number) => (number === null ? "–" : String(Number(number.toPrecision(5))));
let number = 0;

function tell(facts) {
  document.title = facts.title + " – rollmill watch";
  find("title").textContent = facts.title;
  find("run").textContent = facts.run;
  find("episode").textContent = facts.episode;
  find("step").textContent = grouped(facts.step);
  find("episode_return").textContent = short(facts.episode_return);
  find("trained_steps").textContent = facts.trained_steps === null ? "–" : grouped(facts.trained_steps) + " steps";
  find("returns").textContent = facts.returns.map(short).join(", ") || "–";
  find("message").textContent = facts.end ? "episode " + facts.end : "";
}

async function draw(blob) {
  const picture = find("picture");
  const address = URL.createObjectURL(blob);
  try {
    picture.src = address;
    await picture.decode();
    picture.hidden = false;
  } finally {
    URL.revokeObjectURL(address);
  }
}

async function look() {
  for (;;) {
    try {
      const answer = await fetch("scene?after=" + number, { cache: "no-store" });
      if (answer.headers.get("X-Facts")) {
        const facts = JSON.parse(answer.headers.get("X-Facts"));
        await draw(await answer.blob());
        number = facts.number;
        tell(facts);
      } else {
        find("message").textContent = (await answer.json()).message;
      }
    } catch (error) {
      find("message").textContent = "the run, or its watch, has ended";
      number = 0;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

look();
