"use strict";
const button = document.getElementById("copy");
const text = document.getElementById("issue");
function said(words) {
  button.textContent = words;
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}
function copySelected() {
  text.focus();
  text.select();
  said(document.execCommand("copy") ? "Copied" : "Press Ctrl+C");
}
button.hidden = false;
button.addEventListener("click", () => {
  if (!navigator.clipboard) {
    copySelected();
    return;
  }
  navigator.clipboard.writeText(text.value).then(() => said("Copied"), copySelected);
});
