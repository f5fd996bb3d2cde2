"""Plots of two friends who part, and meet again."""

from relation.data.tales.notation import Plot

FRIENDS = (
    Plot(
        "the promise",
        threads=("friend", "treat", "ride"),
        sleepers=("friend", "treat", "ride"),
        text="""
{intro}

{He} had one best friend, {a_trait} {f_kind} named {friend}.
| Every day {hero} played with {friend}, {a_trait} {f_kind} from across the lane.
| Nobody was dearer to {him} than {friend}, {a_trait} {f_kind} with {feature}.

But then {friend} had to go away {errand}.
| One day {friend} packed a bag to go away {errand}.
| They thought that it would always be so. Then {friend} was sent away {errand}.

"Do not be sad," said {friend}. "When I come back, I will bring you some {treat}. I promise."
| "I will be back," {friend} said, "and I will bring some {treat} for the two of us."
| "Wait for me," said {friend}, "and we will eat {treat} together on the day I return."

Then {friend} climbed onto the {ride} and waved for a long time.
| {hero} waved until the {ride} was only a dot.
| The {ride} left, and the lane was very quiet.
---
The first days were the longest. {hero} {peered} every evening, but nobody came.
| {hero} had no wish to play. {He} {chore}, and {he} {pastime}, and still the days were long.
| Weeks went by. {hero} {chore}. {He} {pastime}. And every evening {he} {peered}.
| {hero} made a mark on the door for every day. {He} {chore}. {He} {pastime}. There were {count}
  marks, then twice as many, and then {he} lost count.
--- wait
"Why do you look down the road all the time?" asked {neighbour} the {n_kind}. "Promises are easy to
make."
| One day {neighbour} the {n_kind} came by. "I think you have been forgotten."
| "Still waiting?" asked {neighbour} the {n_kind}. "You could have dug a pond in that time."

Then {neighbour} brought out some {snack}. {hero} took a piece, to be polite, but {he} did not stop
waiting.
| "You do not know my friend," said {hero}. And {he} gave {neighbour} {a_other_thing} to play with,
  so as to be left in peace.
--- wait
Then, one evening, {sound} came from the end of the lane. {hero} dropped {his} spoon and ran.
| One day, when {hero} had almost stopped counting, there was shouting outside. {He} flew down the
  stairs.
| It was raining when somebody at last blew a horn behind the hill. {hero} ran out without a hat.
---
The {ride} had come, and out jumped {friend}, taller than before, with a basket on one arm.
| Down from the {ride} climbed {friend}, laughing and crying at the same time.
| It was the {ride}, and before it had stopped, {friend} leaped out.

"Did you think I would forget?" asked {friend}. In a clean cloth lay the {treat}.
| {friend} opened a box, and the whole lane smelled of {treat}.
| "Here is the {treat}," said {friend}. "I held it on my knees the whole way."
| "Smell this," said {friend}. It was {treat}, real {treat}, still a little warm.

"I knew that you would keep your word," said {hero}.
| "I waited every single day," said {hero}.
| {hero} could not speak for joy.

They sat on the wall and ate until there was not a crumb left.
| They talked and chewed until the stars came out.
| {coda}
""",
    ),
    Plot(
        "the secret word",
        threads=("friend", "word"),
        sleepers=("friend", "word"),
        text="""
{intro}

{He} had a friend called {friend}, {a_trait} {f_kind}, and the two of them loved secrets.
| With {friend}, {a_trait} {f_kind}, {he} had a secret club of two.
| Next door lived {friend}, {a_trait} {f_kind}, who liked spies and codes as much as {he} did.

"If ever we lose each other, I will call out {word}," said {friend}, "and you will know that it is
me."
| They thought for a long time, and then they chose a secret word. It was {word}, and only {hero}
  and {friend} knew it.
| "Our secret word is {word}," {friend} whispered. "Never say it to anyone."

Then it was time for {friend} to go home.
| {hero} said it ten times in {his} head.
---
{Next_day}, {hero} {walked} {to_site} all alone. {He} {play}, and {he} went further than ever
before.
| {Next_day}, {hero} wanted to see what lay beyond {landmark}. {He} {play}, and then {he} went on
  and on.
| A week later {hero} followed a strange cart {to_site}. On the way {he} {play}, and the cart was
  gone.

When {he} turned round, nothing looked the way it should.
| All at once {he} did not know the way back.
| A thick mist came up, and soon {he} could not see {his} own feet.
| Had that tree been there before? Had that stone? {hero} was lost.
--- way
It grew dark. Hoo, hoo, called an owl. {hero} felt {worried}.
| Night fell. There was {sound}, and then another. "Hello?" called {hero}, but only the echo
  answered.
| The sun went down, and everything grew long arms. {hero} sat very still.

"Follow me," said a voice. "I am your friend." "Then what is our word?" asked {hero}. "Er, is it
{other_word}?" said the voice.
| A shape came near. "I know your secret word," it said. "It is {other_word}, is it not?"

{hero} stayed where {he} was, and a good thing too. It was only {neighbour} the {n_kind}, who loved
to play tricks.
| "No," said {hero} firmly, and {neighbour} the {n_kind} slunk off, disappointed.
| "Wrong!" said {hero}, and folded {his} arms. {neighbour} the {n_kind} grumbled and went home.
---
Then, far away, somebody called a word, over and over again. "{Word}! {Word}!"
| From behind a hill came a thin, brave shout. "{Word}!"
| A light was swinging in the distance, and a voice sang out, "{Word}!"

Only one other soul knew the word {word}, and that was {friend}.
| "That is {friend}!" cried {hero}. "Nobody else would shout {word} in the night."
| "{Word}!" {hero} shouted back. Who but {friend} would know that the word was {word}?

{hero} ran towards it, and they hugged each other tight.
| They found each other by calling, step by step.
| A moment later they were both laughing, because they had been so frightened.

{Hand} in {hand} they went home.
| From then on they loved their secret even more.
| {coda}
""",
    ),
    Plot(
        "the swaps",
        threads=("friend", "thing"),
        sleepers=("friend", "thing"),
        text="""
{intro}

{He} owned {a_thing} and had owned it for as long as {he} could remember.
| Of all the things {he} had, {he} liked {a_thing} best.
| {A_thing} always stood beside {his} bed.

One day {friend}, {a_trait} {f_kind}, came along with {a_other_thing}. "Shall we swap?" asked
{friend}.
| "I will give you {a_other_thing} for it," said {friend}, {a_trait} {f_kind}, one day.
| Then {a_trait} {f_kind} named {friend} held up {a_other_thing}. "Yours for mine?"
| Then {friend}, {a_trait} {f_kind}, got {a_other_thing} for {f_his} birthday. "Let us swap," said
  {friend}.

{hero} said yes before {he} had thought about it, and {friend} went off with the {thing}.
| New things are tempting. So {friend} got the {thing}, and {hero} was left with the {other_thing}.
| "All right," said {hero}, and the {thing} went home with {friend}.
---
For one day the {other_thing} was fun. Then {he} swapped it with {neighbour} the {n_kind} for
{a_third_thing}.
| But {hero} soon grew tired of it. "Give it to me," said {neighbour} the {n_kind}, "and you can
  have {a_third_thing}."
| The {other_thing} turned out to be dull. {neighbour} the {n_kind} took it and gave {him}
  {a_third_thing}.
| Before the week was over, the {other_thing} had lost its charm, and {neighbour} the {n_kind} was
  pleased to give {a_third_thing} for it.

That seemed clever at the time.
| "What a bargain!" said {hero}.
| {hero} {play}, and for a while {he} was content.
|
--- way
But the {third_thing} was heavy to carry. The {passer} offered {him} some {snack} for it, and
{hero} was hungry.
| Then {he} met the {passer}, who had some {snack} left over. Soon the {third_thing} was gone, and
  so was the {snack}.
| The {passer} admired the {third_thing} so much that {hero} let it go for some {snack}.

When the last bite was eaten, there was nothing left at all.
| Afterwards {he} looked at {his} empty {hands}.
| "Now I have nothing to swap any more," {he} thought.
--- wait
{hero} felt {worried}. "I gave away what I loved best," {he} said to {himself}.
| In the evening the place beside {his} bed was bare. {hero} stared at it and sighed.
| That night {he} could not sleep, for thinking of what {he} had had in the beginning.
| How had it come to this? {hero} went through it all again, from the last swap back to the first.
---
{Next_day}, there was a knock, and outside stood {friend} with the {thing}.
| {Next_day}, {friend} came up the path, carrying the {thing} in both {f_hands}.
| {Next_day}, {he} found {friend} on the doorstep, and beside {friend} the {thing}.
| {Next_day}, somebody threw a pebble at the window. It was {friend}, and {f_he} was holding up the
  {thing}.

"It is not the same without you," said {friend}. "Please take it back."
| "I think it wants to come home," said {friend}.
| "I have missed playing with you," said {friend}. "A toy alone is no company."

"But I have nothing to give you," said {hero}. "Then let us share it," said {friend}.
| {hero} told the whole sad tale of the swaps, and {friend} laughed until {f_he} had the hiccups.
| "I will never swap it again," said {hero}, "but you may play with it every day."

{coda}
""",
    ),
    Plot(
        "the quarrel",
        threads=("friend", "thing"),
        sleepers=("friend", "thing"),
        text="""
{intro}

{He} and {friend}, {a_trait} {f_kind}, were the best of friends until {friend} dropped {his}
{thing} into the mud.
| One day {hero} lent {his} {thing} to {friend}, {a_trait} {f_kind}, and {friend} left it out in
  the rain.
| {He} had {a_thing}, and {his} friend {friend}, {a_trait} {f_kind}, trod on it by mistake.

"You spoil everything!" shouted {hero}.
| "Look what you have done! Go away!" cried {hero}.
| "I never want to see you again," said {hero}, and {he} almost meant it.

{friend} picked up the {thing} without a word and went away.
| Then {friend} was gone, and the ruined {thing} with {f_him}.
| Silently {friend} put the {thing} into a bag and walked out of the door.
---
At first {hero} was angry, then {he} was bored. A seesaw is no good for one.
| {hero} tried to play alone. {He} {play}, but it was no fun at all.
| For days {hero} did not laugh. {He} {chore}, and {he} slammed all the doors.
| A whole week went by, and the garden was very quiet. {hero} {chore} and talked to nobody.
--- wait
"Will you be cross for ever?" asked {neighbour} the {n_kind}.
| "You look like a thundercloud," said {neighbour} the {n_kind}.
| {neighbour} the {n_kind} stopped at the fence. "I heard about it," said {neighbour}.

"Once I lost a friend over {a_other_thing}. I still have the {other_thing}, but what is it good
for?"
| "Take this instead," said {neighbour}, and held out {a_other_thing}. "I do not want it," said
  {hero}. "I want things to be as they were."

{hero} thought about that for a long time.
| {hero} felt {worried} and said nothing.
|
--- wait
At last {he} made up {his} mind. {He} practised in front of the mirror: "I am sorry. I am very
sorry."
| Slowly {he} put on {his} coat. It is not easy to say sorry, but {he} was going to try.
| All night {he} sat over a letter, tore it up and wrote it again. It had only one word: "Sorry."
| "Somebody has to begin," said {hero} to the cat, "and it had better be me."

{He} opened the door to go.
| Then {he} took a deep breath and lifted the latch.
| With a beating heart {he} went down the stairs, one step at a time.
---
On the step stood {friend}, holding the {thing}. It was as good as new.
| But {friend} was already coming up the path, and {f_he} had the {thing} with {f_him}. Nobody
  could have told that it had ever been spoiled.
| There sat {friend} on the wall, {f_his} {f_hands} full of glue and thread and the {thing} on
  {f_his} knees, whole again.

"I worked on it for {count} days," said {friend}. "I am sorry." "No, I am sorry," said {hero}.
| "I was coming to you," said {hero}. "I was coming to you," said {friend}, and they had to laugh.
| "You are worth more than any toy," said {hero}. "Please come in."
| For a while neither of them spoke. Then both said "Sorry" in the same breath.

{coda}
""",
    ),
)
